/* The controls, the list, and the address. */

const form = document.getElementById("browse");
const list = document.getElementById("list");
const more = document.getElementById("more");

function render() {
  const selected = select();
  const shown = selected.groups.slice(0, state.nShown);
  list.replaceChildren(...shown.map((group) => groupCard(group, selected.matches.get(group.group_id))));
  document.getElementById("status").textContent = statusOf(selected, shown.length);
  document.getElementById("chips").replaceChildren(...state.conditions.map(chip));
  const nLeft = selected.groups.length - shown.length;
  more.hidden = nLeft === 0;
  more.textContent = `Show ${Math.min(nLeft, GROUPS_AT_A_TIME)} more of ${count(nLeft)} groups`;
}

function statusOf({ nCompletions, groups }, nShown) {
  const isAll = nCompletions === rows.length;
  const some = `${isAll ? "All" : `${count(nCompletions)} of`} ${count(rows.length)} completions on this page`;
  return `${some}${isAll ? "" : " match"}, in ${count(groups.length)} groups; ${count(nShown)} shown`;
}

function chip(condition) {
  const text = `${condition.column} ${condition.operator} ${condition.value}`.trim();
  const properties = { type: "button", className: "chip", title: "remove this filter" };
  const button = element("button", properties, inert(text), " ×");
  button.addEventListener("click", () => {
    state.conditions = state.conditions.filter((other) => other !== condition);
    restart();
  });
  return button;
}

function restart() {
  Object.assign(state, { linked: null, nShown: GROUPS_AT_A_TIME });
  render();
}

function search() {
  const { search: field, cased } = form.elements;
  try {
    state.pattern = field.value === "" ? null : new RegExp(field.value, cased.checked ? "u" : "iu");
    field.setCustomValidity("");
  } catch (error) {
    field.setCustomValidity(error.message);
    field.reportValidity();
    return;
  }
  restart();
}

function addCondition() {
  const { column, operator, value } = form.elements;
  state.conditions.push({ column: column.value, operator: operator.value, value: value.value });
  value.value = "";
  restart();
}

function sort() {
  state.sort = form.elements.sort.value;
  state.isDescending = form.elements.direction.value === "descending";
  restart();
}

function clear() {
  form.reset();
  form.elements.search.setCustomValidity("");
  Object.assign(state, { conditions: [], pattern: null, sort: "", isDescending: true });
  restart();
}

/** Show what the address names: `#completion=<id>`, `#group=<id>` or `#prompt=<id>`. */
function follow() {
  const [kind, id] = decoded(location.hash.slice(1)).split(/=(.*)/s);
  const belongs = {
    completion: (group) => group.completions.some((completion) => completion.completion_id === id),
    group: (group) => group.group_id === id,
    prompt: (group) => group.prompt_id === id,
  }[kind];
  const missing = document.getElementById("missing");
  missing.hidden = true;
  if (belongs === undefined) return;
  const target = data.groups.find(belongs);
  if (target === undefined) {
    missing.textContent = `There is no ${kind} ${id} on this page. See it with: ${data.show} ${id}`;
    missing.hidden = false;
    missing.scrollIntoView();
    return;
  }
  if (!select().groups.includes(target)) clear();
  state.linked = target;
  render();
  const anchor = document.getElementById(kind === "completion" ? `completion=${id}` : `group=${target.group_id}`);
  anchor.classList.add("target");
  anchor.scrollIntoView();
}

/** An address that a person cut short may end within an escape. */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function options(select, names) {
  select.append(...names.map((name) => element("option", { value: name, textContent: name })));
}

options(form.elements.column, columns);
options(form.elements.operator, Object.keys(OPERATORS));
options(form.elements.sort, columns);
form.elements.search.addEventListener("input", search);
form.elements.cased.addEventListener("change", search);
form.elements.sort.addEventListener("change", sort);
form.elements.direction.addEventListener("change", sort);
form.elements.clear.addEventListener("click", clear);
form.addEventListener("submit", (event) => {
  event.preventDefault();
  addCondition();
});
more.addEventListener("click", () => {
  state.nShown += GROUPS_AT_A_TIME;
  render();
});
addEventListener("hashchange", follow);
form.hidden = false;
render();
follow();
