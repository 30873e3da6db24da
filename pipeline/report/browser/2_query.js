/* Which completions match, and in what order. */

const OPERATORS = {
  "=": same,
  "≠": (value, wanted) => !same(value, wanted),
  "<": (value, wanted) => value !== null && value < Number(wanted),
  "≤": (value, wanted) => value !== null && value <= Number(wanted),
  ">": (value, wanted) => value !== null && value > Number(wanted),
  "≥": (value, wanted) => value !== null && value >= Number(wanted),
  contains: (value, wanted) => value !== null && String(value).includes(wanted),
  "is empty": (value) => value === null || value === "",
  "is not empty": (value) => value !== null && value !== "",
};

/** Whether a cell is what a person typed: 1 is 1.0, and true is the word. */
function same(value, wanted) {
  if (typeof value === "number") return wanted.trim() !== "" && value === Number(wanted);
  return value !== null && String(value) === wanted;
}

function isMatch(row) {
  return (
    state.conditions.every(({ column, operator, value }) => OPERATORS[operator](row[column] ?? null, value)) &&
    (state.pattern === null || state.pattern.test(row.completion_text))
  );
}

/** Null last, whichever way; text by its characters. */
function compare(one, other) {
  const [a, b] = [one[state.sort] ?? null, other[state.sort] ?? null];
  if (a === b) return 0;
  if (a === null || b === null) return a === null ? 1 : -1;
  return (a < b ? -1 : 1) * (state.isDescending ? -1 : 1);
}

/** The groups with a completion that matches, in order, each with the ids of those that do. */
function select() {
  const matching = rows.filter(isMatch);
  if (state.sort) matching.sort(compare);
  const byGroup = new Map();
  for (const row of matching) {
    if (!byGroup.has(row.group_id)) byGroup.set(row.group_id, new Set());
    byGroup.get(row.group_id).add(row.completion_id);
  }
  const places = new Map([...byGroup.keys()].map((id, place) => [id, place]));
  const found = data.groups.filter((group) => byGroup.has(group.group_id));
  if (state.sort) found.sort((one, other) => places.get(one.group_id) - places.get(other.group_id));
  found.sort((one, other) => (other === state.linked) - (one === state.linked));
  return { groups: found, matches: byGroup, nCompletions: matching.length };
}

