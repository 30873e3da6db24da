/* The group browser: filter, search, sort, compare and link the completions that the page holds.
 *
 * The files of this folder are one module, in the order of their names. What a model wrote is data: it comes as JSON,
 * and nothing here builds markup from a string. The page's Content-Security-Policy admits this script by its hash and
 * no other.
 */

const data = JSON.parse(document.getElementById("data").textContent);
const GROUPS_AT_A_TIME = 10;

/** One row per completion: its own columns, under their names those of its group, and its `prompt` as text. */
const rows = data.groups.flatMap((group) => {
  const shared = { ...scalars(group), prompt: group.messages.map((message) => message.text).join("\n") };
  return group.completions.map((completion) => ({ ...shared, ...completion }));
});
const columns = [...new Set(rows.flatMap((row) => Object.keys(row)))].sort();
const isOneIteration = new Set(data.groups.map((group) => group.iteration)).size < 2;

/** `linked` is the group that the address names, which comes first. */
const state = { conditions: [], pattern: null, sort: "", isDescending: true, linked: null, nShown: GROUPS_AT_A_TIME };

function scalars(group) {
  return Object.fromEntries(Object.entries(group).filter(([, value]) => value === null || typeof value !== "object"));
}

