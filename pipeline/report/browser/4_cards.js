/* A group as a card: its prompt, and its completions side by side. */

const VERDICTS = new Map([[true, "correct"], [false, "wrong"], [null, "no verdict"]]);
const KINDS = new Map([[true, "correct"], [false, "wrong"], [null, "unjudged"]]);

function facts(pairs) {
  const shown = pairs.filter((pair) => pair !== null).map(([name, value, className = ""]) => {
    const content = typeof value === "string" ? inert(value) : value;
    return element("div", { className }, element("dt", {}, name), element("dd", {}, element("bdi", {}, content)));
  });
  return element("dl", { className: "facts" }, ...shown);
}

function link(kind, id, text) {
  return element("a", { href: `#${kind}=${id}`, title: id, textContent: text });
}

function termsOf(completion) {
  const terms = Object.entries(completion).filter(([name]) => name.startsWith("reward_"));
  return terms.map(([name, value]) => `${name.slice("reward_".length)} ${decimal(value)}`).join(" · ");
}

function shadowsOf(completion) {
  const shadows = Object.entries(completion).filter(([name]) => name.startsWith("is_correct_"));
  return shadows.map(([name, verdict]) => `${name.slice("is_correct_".length)} ${VERDICTS.get(verdict)}`).join(" · ");
}

function completionCard(completion, isMatching) {
  const id = completion.completion_id;
  const kind = KINDS.get(completion.is_correct);
  const card = element(
    "article",
    { id: `completion=${id}`, className: `${kind}${isMatching ? "" : " dim"}` },
    element(
      "div",
      { className: "line" },
      link("completion", id, String(completion.completion_index)),
      element("span", { className: "verdict", textContent: VERDICTS.get(completion.is_correct) }),
      completion.finish_reason === "length" ? pill("cut off", "warn") : null,
      completion.flip && completion.flip !== "same" ? pill(completion.flip, `flip ${completion.flip}`) : null,
      element("span", { className: "soft", textContent: `${count(completion.n_tokens)} tokens` }),
    ),
    passage(completion.completion_text, completion.n_characters, `${data.show} ${id}`, marked),
    facts([
      ["reward", decimal(completion.reward)],
      ["advantage", signed(completion.advantage), ["down", "", "up"][1 + Math.sign(completion.advantage ?? 0)]],
      termsOf(completion) ? ["terms", termsOf(completion)] : null,
      ["extracted", completion.extracted_answer ?? "nothing"],
      shadowsOf(completion) ? ["shadows", shadowsOf(completion)] : null,
      completion.score_error === null ? null : ["error", completion.score_error, "error"],
    ]),
  );
  if (completion.flip !== undefined) card.append(againstPart(completion));
  return card;
}

/** The same completion in the other commit; in brief where nothing differs. */
function againstPart(completion) {
  if (completion.flip === "same" && completion.against_text === null) {
    return element("p", { className: "soft against", textContent: `the same in ${data.against}` });
  }
  if (completion.flip === null) {
    return element("p", { className: "soft against", textContent: `not in ${data.against}` });
  }
  const { against_text: text, against_n_characters: nCharacters } = completion;
  return element(
    "div",
    { className: "against" },
    element("p", { className: "soft", textContent: `in ${data.against}` }),
    text === null ? null : passage(text, nCharacters, `rollbook report ${data.against}`),
    facts([
      ["verdict", VERDICTS.get(completion.against_is_correct)],
      ["reward", decimal(completion.against_reward)],
      ["extracted", completion.against_extracted_answer ?? "nothing"],
    ]),
  );
}

function pill(text, kind) {
  return element("span", { className: `pill ${kind}`, textContent: text });
}

function promptPart(group) {
  const messages = group.messages.map((message) => element(
    "div",
    { className: "message" },
    element("span", { className: "role" }, inert(message.role)),
    passage(message.text, message.n_characters, `${data.show} ${group.prompt_id}`),
  ));
  return element("div", { className: "prompt" }, ...messages, facts([
    ["answer", group.answer ?? "none"],
    ["verifier", group.verifier],
    ["source", group.source],
    group.position === null ? null : ["drawn", `at ${group.position}, ${group.draw}`],
    [group.kept ? "kept" : "dropped", group.reason],
    ["rewards", `mean ${decimal(group.reward_mean)}, std ${decimal(group.reward_std)}`],
    group.n_truncated ? ["cut off", `${group.n_truncated} of ${group.group_size}`] : null,
    group.n_unscorable ? ["unscorable", `${group.n_unscorable} of ${group.group_size}`] : null,
    ["group", link("group", group.group_id, group.group_id)],
  ]));
}

function groupCard(group, matches) {
  const ordered = [...group.completions];
  if (state.sort in ordered[0]) ordered.sort(compare);
  const said = [
    ...(isOneIteration ? [] : [`iteration ${group.iteration}`]),
    `${group.n_correct} of ${group.group_size} correct`,
    `mean reward ${decimal(group.reward_mean)}`,
    group.kept ? "kept" : "dropped",
  ].join(" · ");
  const summary = element(
    "summary",
    {},
    element("b", {}, heading(group.messages)),
    pill(group.outcome, group.outcome),
    element("span", { className: "soft", textContent: said }),
  );
  const left = `${count(group.n_left_out)} more completions of this group, lower in reward, are not on this page`;
  const cards = ordered.map((completion) => completionCard(completion, matches.has(completion.completion_id)));
  return element(
    "details",
    { className: "card group", id: `group=${group.group_id}`, open: true },
    summary,
    promptPart(group),
    group.n_left_out ? note(`${left}: ${data.show} ${group.group_id}`) : null,
    element("div", { className: "completions" }, ...cards),
  );
}

