"use strict";
// Chooses rounds in the text, by mouse, buttons or keys, and draws the tree of the chosen one.
(() => {
  const labels = JSON.parse(document.getElementById("labels").textContent);
  const label = (token) => labels[token] ?? String(token);
  const escape = (text) => text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
  const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;
  const percent = (share) => (share >= 0.1 ? `${Math.round(100 * share)} %` : `${(100 * share).toFixed(1)} %`);

  // Pixels.
  const LEAST_ROW = 18, MOST_ROW = 28, LEAST_GAP = 26, MOST_GAP = 90, TOP = 30, MARGIN = 10, CHARACTER = 7.9;

  const read = ([nodes, tokens, parents, shares, path, emitted]) =>
    ({nodes, tokens, parents, shares: shares.map((share) => share / 1000), path, emitted});

  // The nodes, and one more for the target's own token behind the path. Each has a column for its depth; leaves
  // take a row each in depth-first order, a parent sits midway between its first and last child. Columns and rows
  // spread over the `room` [width, height] as far as that makes sense.
  function layOut(round, room = [0, 0]) {
    const count = round.tokens.length;
    const parent = [...round.parents, round.path.at(-1)];
    const text = [...round.tokens, round.emitted.at(-1)].map(label);
    const nodes = text.map((_, i) => ({
      text: text[i], parent: parent[i], children: [], bonus: i === count, on: false,
      share: i < count ? round.shares[i] : 1,
    }));
    const width = [];
    nodes.forEach((node, i) => {
      const above = nodes[node.parent];
      node.depth = above ? above.depth + 1 : 0;
      node.chance = above ? above.chance * node.share : 1;
      if (above) node.rank = above.children.push(i);
      node.width = Math.max(26, 14 + CHARACTER * [...node.text].length);
      width[node.depth] = Math.max(width[node.depth] ?? 0, node.width);
    });
    for (const i of round.path) nodes[i].on = true;
    const spare = room[0] - 2 * MARGIN - width.reduce((sum, w) => sum + w, 0);
    const gap = Math.max(LEAST_GAP, Math.min(MOST_GAP, spare / Math.max(1, width.length - 1)));
    const left = [MARGIN];
    width.forEach((w, depth) => left.push(left[depth] + w + gap));
    const leaves = nodes.filter((node) => node.children.length === 0).length;
    const row = Math.max(LEAST_ROW, Math.min(MOST_ROW, (room[1] - TOP - 8) / leaves));
    let rows = 0;
    const stack = [0];
    while (stack.length > 0) {
      const node = nodes[stack.pop()];
      node.x = left[node.depth] + (width[node.depth] - node.width) / 2;
      if (node.children.length === 0) node.y = TOP + row * rows++ + row / 2;
      stack.push(...[...node.children].reverse());
    }
    for (const node of [...nodes].reverse()) {
      if (node.children.length === 0) continue;
      node.y = (nodes[node.children[0]].y + nodes[node.children.at(-1)].y) / 2;
    }
    return {nodes, left, width, row, size: [left.at(-1) - gap + MARGIN, TOP + row * rows + 8]};
  }

  const kind = (node) => (node.bonus ? "bonus" : node.on ? "on" : "");

  function edge(nodes, node) {
    const from = nodes[node.parent];
    const x0 = Math.round(from.x + from.width), x1 = Math.round(node.x), middle = Math.round((x0 + x1) / 2);
    const y0 = Math.round(from.y), y1 = Math.round(node.y);
    const width = node.bonus ? 2 : Math.max(node.on ? 3.5 : 1, 10 * node.chance).toFixed(1);
    return `<path class="edge ${kind(node)}" stroke-width="${width}" pathLength="1" ` +
      `d="M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}"/>`;
  }

  function box(node, i, height) {
    const strength = Math.min(4, Math.floor(5 * node.chance));
    const about = i === 0 ? "root: the last token so far"
      : node.bonus ? "the target's own token"
      : `probability ${percent(node.share)}, of the path ${percent(node.chance)}${node.on ? ", accepted" : ""}`;
    return `<g class="node ${kind(node)}"><title>${escape(node.text)} – ${about}</title>` +
      `<rect class="q${strength} ${kind(node)}" x="${Math.round(node.x)}" y="${Math.round(node.y) - height / 2}" ` +
      `width="${Math.round(node.width)}" height="${height}" rx="${node.bonus ? height / 2 : 4}"/>` +
      `<text x="${Math.round(node.x + node.width / 2)}" y="${Math.round(node.y) + 4}">${escape(node.text)}</text></g>`;
  }

  function draw(round, name, room) {
    const {nodes, left, width, row, size} = layOut(round, room);
    const height = row < 22 ? 16 : 20;
    const columns = width.map((w, depth) => {
      const x = Math.round(left[depth] + w / 2);
      return `<path class="guide" d="M${x} ${TOP - 6}V${size[1]}"/>` +
        `<text class="column" x="${x}" y="16">${depth === 0 ? "root" : `+${depth}`}</text>`;
    });
    const behind = nodes.slice(1).filter((node) => !node.on), front = nodes.slice(1).filter((node) => node.on);
    return `<svg viewBox="0 0 ${size.map(Math.round).join(" ")}" width="${Math.round(size[0])}" role="img" ` +
      `style="min-width:${Math.round(0.8 * size[0])}px" ` +
      `aria-label="${escape(name)}">${columns.join("")}` +
      [...behind, ...front].map((node) => edge(nodes, node)).join("") + nodes.map((node, i) => box(node, i, height)).join("") + "</svg>";
  }

  const ordinal = (n) => `${n}${n % 100 > 10 && n % 100 < 14 ? "th" : ["th", "st", "nd", "rd"][n % 10] ?? "th"}`;

  // The accepted path in words: its nodes with their probability and place among their siblings.
  function steps(round) {
    const {nodes} = layOut(round);
    const items = round.path.slice(1).map((i) => {
      const node = nodes[i];
      return `<li><code>${escape(node.text)}</code><span>${percent(node.share)}` +
        `${node.rank === 1 ? "" : `, ${ordinal(node.rank)} choice`}</span></li>`;
    });
    items.push(`<li class="bonus"><code>${escape(nodes.at(-1).text)}</code><span>target's own</span></li>`);
    return items.join("");
  }

  // Tokens that the drafter's most probable continuation alone would have given, where the path leaves it.
  function chainLength(round) {
    if (round.tokens.length === 0) return 0;
    const {nodes} = layOut(round);
    const leaves = round.path.slice(1).findIndex((i) => nodes[i].rank > 1);
    return leaves < 0 ? 0 : leaves + 1;
  }

  function summary(round) {
    const gave = plural(round.emitted.length, "token");
    if (round.nodes === 0) return "Nothing was drafted: the target gave its own token.";
    let text = `${plural(round.nodes, "node")} verified in one pass, ${round.emitted.length - 1} accepted: ${gave}.`;
    if (round.tokens.length === 0) return `${text} The tree is not kept: the report holds only so many nodes.`;
    const chain = chainLength(round);
    if (chain > 0) text += ` The best chain alone would have given ${chain}.`;
    if (round.tokens.length <= round.nodes) text += ` The ${round.tokens.length - 1} most probable nodes are shown.`;
    return text;
  }

  const tip = document.body.appendChild(document.createElement("div"));
  tip.className = "tip";
  tip.hidden = true;
  function showTip(span) {
    tip.textContent = span.dataset.about;
    tip.hidden = false;
    const at = span.getClientRects()[0], room = document.documentElement.clientWidth - tip.offsetWidth - 8;
    tip.style.left = `${Math.max(8, Math.min(at.left, room)) + scrollX}px`;
    tip.style.top = `${(at.top > 48 ? at.top - tip.offsetHeight - 6 : at.bottom + 6) + scrollY}px`;
  }

  function setUp(section) {
    const find = (query) => section.querySelector(query);
    const rounds = JSON.parse(find("script").textContent).map(read);
    const spans = [...section.querySelectorAll(".r")];
    const text = find(".text"), slider = find("input"), strip = find(".timeline"), play = find("[data-step=play]");
    const tree = find(".tree");
    let now = -1, timer = 0;

    function choose(index, focus) {
      index = Math.max(0, Math.min(rounds.length - 1, index));
      if (index !== now) {
        spans[now]?.setAttribute("aria-pressed", "false");
        if (now >= 0) spans[now].tabIndex = -1;
        now = index;
        const round = rounds[now], name = `Round ${now + 1} of ${rounds.length}`;
        find(".round").textContent = name;
        find(".said").textContent = summary(round);
        tree.innerHTML = round.tokens.length > 0 ? draw(round, `${name}: ${summary(round)}`, [tree.clientWidth - 16, 0.6 * innerHeight]) : "";
        // The accepted path is in sight where the tree is larger than its box.
        const on = tree.querySelector(".node.bonus")?.getBoundingClientRect(), box = tree.getBoundingClientRect();
        if (on) tree.scrollBy(on.right - box.right + 40, on.top - box.top - box.height / 2);
        find(".path").innerHTML = round.tokens.length > 0 ? steps(round) : "";
        slider.value = now + 1;
        slider.setAttribute("aria-valuetext", name);
        const mark = strip.querySelector(".now");
        const height = 10 * round.emitted.length;
        mark.setAttribute("x", 8 * now);
        mark.setAttribute("y", strip.viewBox.baseVal.height - height);
        mark.setAttribute("height", height);
      }
      const span = spans[now];
      span.setAttribute("aria-pressed", "true");
      span.tabIndex = 0;
      // The text scrolls in its box, the page stays.
      const above = span.offsetTop - text.clientHeight / 2;
      if (span.offsetTop < text.scrollTop || span.offsetTop + span.offsetHeight > text.scrollTop + text.clientHeight) {
        text.scrollTop = above;
      }
      if (focus) span.focus({preventScroll: true});
    }

    function stop() {
      clearInterval(timer);
      timer = 0;
      play.textContent = "Play";
    }
    function start() {
      if (now === rounds.length - 1) choose(0);
      timer = setInterval(() => (now === rounds.length - 1 ? stop() : choose(now + 1)), 1000);
      play.textContent = "Pause";
    }

    const moves = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, PageDown: 10, PageUp: -10,
      Home: -Infinity, End: Infinity};
    section.move = (event, focus) => {
      const by = moves[event.key];
      if (by === undefined || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      stop();
      choose(now + by, focus);
      event.preventDefault();
    };

    spans.forEach((span, i) => {
      span.dataset.about = span.title;
      span.removeAttribute("title");
      span.setAttribute("role", "button");
      span.setAttribute("aria-pressed", "false");
      span.setAttribute("aria-label", `${span.dataset.about}: ${rounds[i].emitted.map(label).join("")}`);
      span.tabIndex = -1;
      for (const event of ["mouseenter", "focus"]) span.addEventListener(event, () => showTip(span));
      for (const event of ["mouseleave", "blur"]) span.addEventListener(event, () => (tip.hidden = true));
      span.addEventListener("click", () => {
        stop();
        choose(i, true);
      });
    });
    text.removeAttribute("tabindex");
    text.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") event.preventDefault();
      else section.move(event, true);
    });
    find(".controls").addEventListener("click", (event) => {
      const step = event.target.closest("button")?.dataset.step;
      if (step === undefined) return;
      if (step === "play") return timer ? stop() : start();
      stop();
      choose(step === "first" ? 0 : step === "last" ? Infinity : now + Number(step));
    });
    slider.addEventListener("input", () => {
      stop();
      choose(slider.value - 1);
    });
    strip.addEventListener("click", (event) => {
      stop();
      const place = strip.getBoundingClientRect();
      choose(Math.floor(rounds.length * (event.clientX - place.left) / place.width));
    });
    // The round that shows best what trees are for; else the first.
    const gain = rounds.map((round) => (chainLength(round) > 0 ? round.emitted.length - chainLength(round) : 0));
    choose(gain.indexOf(Math.max(...gain)));
  }

  document.documentElement.classList.add("live");
  const sections = [...document.querySelectorAll(".request")].filter((section) => section.querySelector("script"));
  sections.forEach(setUp);
  // Arrow keys work before anything has the focus.
  document.addEventListener("keydown", (event) => {
    const sideways = event.key === "ArrowRight" || event.key === "ArrowLeft";
    if (sideways && event.target === document.body) sections[0]?.move(event, true);
  });
})();
