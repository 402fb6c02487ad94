// Draft trees: one round at a time, from the data in the page.
(() => {
  const source = document.getElementById("rounds-data");
  if (!source) return;
  const data = JSON.parse(source.textContent);
  const at = (id) => document.getElementById(id);
  const viewer = at("viewer"), stage = at("stage"), tip = at("tip"), chooser = at("request");
  const ROW = 19, TOP = 26, LEFT = 14, IMPOSSIBLE = -9999;
  let request = 0, index = 0;

  const make = (name, attributes, parent, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const word = (token) => data.tokens[data.requests[request].tokens][token] ?? String(token);
  const clipped = (text, most) => (text.length > most ? text.slice(0, Math.max(1, most - 1)) + "…" : text);
  const share = (log) => {
    if (log === null) return "not recorded";
    const percent = log <= IMPOSSIBLE ? 0 : 100 * Math.exp(log);
    return (percent >= 1 || percent === 0 ? percent.toFixed(1) : percent.toPrecision(2)) + " %";
  };

  // Where every node stands: a column a depth, a line a leaf, a parent level with its first child. The bonus is the
  // last node, the first child of the end of the accepted path.
  const layout = (round) => {
    const n = round.tokens.length, end = round.path[round.path.length - 1];
    const parents = [...round.parents, end], children = parents.map(() => []);
    const depths = [0], scores = [0], lines = new Array(n + 1);
    for (let row = 1; row < n; row++) {
      children[parents[row]].push(row);
      depths[row] = depths[parents[row]] + 1;
      scores[row] = round.logs[row] === null ? null : scores[parents[row]] + round.logs[row];
    }
    depths[n] = depths[end] + 1;
    children[end].unshift(n);
    let next = 0;
    const ahead = [[0, false]];
    while (ahead.length) {
      const [row, done] = ahead.pop();
      if (done) lines[row] = lines[children[row][0]];
      else if (!children[row].length) lines[row] = next++;
      else ahead.push([row, true], ...children[row].map((child) => [child, false]).reverse());
    }
    return { n, parents, depths, scores, lines, deepest: Math.max(...depths), height: next };
  };

  const about = (round, tree, row) => {
    if (row === tree.n) return `${word(round.bonus)}\nbonus: the target's own token`;
    const said = [`${word(round.tokens[row])}  (token ${round.tokens[row]})`];
    if (row === 0) said.push("root: the last token before this round");
    else {
      said.push(`drafter's probability ${share(round.logs[row])}`, `of the path to it ${share(tree.scores[row])}`);
      said.push(`depth ${tree.depths[row]}, node ${round.rows ? round.rows[row] : row} of ${round.nodes}`);
      said.push(round.path.includes(row) ? "accepted" : "not accepted");
    }
    if (round.hidden[row]) said.push(`${round.hidden[row]} more below are not drawn`);
    return said.join("\n");
  };

  const draw = () => {
    const asked = data.requests[request], round = asked.rounds[index], tree = layout(round);
    const room = Math.max(stage.clientWidth, 320) - LEFT - 40;
    const column = Math.min(150, Math.max(64, room / (tree.deepest + 1)));
    const letters = Math.floor((column - 16) / 6.4), accepted = new Set(round.path);
    const x = (row) => LEFT + tree.depths[row] * column, y = (row) => TOP + 12 + tree.lines[row] * ROW;
    const width = LEFT + (tree.deepest + 1) * column + 16, height = TOP + 12 + tree.height * ROW;
    const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "draft tree" });
    for (let depth = 0; depth <= tree.deepest; depth++) {
      make("text", { class: "depth", x: LEFT + depth * column - 4, y: 12 }, svg, depth ? `depth ${depth}` : "root");
    }
    for (let row = tree.n; row > 0; row--) {
      const parent = tree.parents[row], half = column * 0.45;
      const style = row === tree.n ? "bonus" : accepted.has(row) ? "on" : "";
      const [x0, y0, x1, y1] = [x(parent), y(parent), x(row), y(row)];
      make("path", { class: style, d: `M${x0} ${y0}C${x0 + half} ${y0} ${x1 - half} ${y1} ${x1} ${y1}` }, svg);
    }
    for (let row = 0; row <= tree.n; row++) {
      const bonus = row === tree.n, on = accepted.has(row);
      const node = make("g", { class: `node${on ? " on" : bonus ? " bonus" : ""}`, "data-row": row }, svg);
      make("rect", { x: x(row) - 7, y: y(row) - 9, width: column - 4, height: 18, fill: "transparent" }, node);
      if (bonus) make("text", { class: "star", x: x(row) - 6, y: y(row) + 5, style: "font-size:15px" }, node, "★");
      else {
        const fill = row === 0 ? 1 : round.logs[row] === null ? 0.5 : Math.exp(round.logs[row]);
        make("circle", { cx: x(row), cy: y(row), r: on ? 5 : 4, "fill-opacity": fill.toFixed(3) }, node);
      }
      const more = round.hidden[row] ? ` +${round.hidden[row]}` : "";
      const text = bonus ? word(round.bonus) : word(round.tokens[row]);
      make("text", { x: x(row) + 9, y: y(row) - 3 }, node, clipped(text, letters) + more);
    }
    stage.replaceChildren(svg);
    stage.scrollTop = Math.max(0, y(tree.n) - stage.clientHeight + 40);
    tip.hidden = true;
    stage.onpointermove = stage.onpointerdown = (event) => {
      const node = event.target.closest?.("g.node");
      stage.querySelectorAll(".near").forEach((one) => one.classList.remove("near"));
      if (!node) return void (tip.hidden = true);
      node.classList.add("near");
      show(about(round, tree, Number(node.dataset.row)), event);
    };
    stage.onpointerleave = () => { tip.hidden = true; };
    describe(asked, round, tree);
  };

  const show = (text, event) => {
    tip.textContent = text;
    tip.hidden = false;
    const frame = viewer.getBoundingClientRect();
    const left = Math.min(event.clientX - frame.left + 14, frame.width - tip.offsetWidth - 6);
    tip.style.left = `${Math.max(4, left)}px`;
    tip.style.top = `${event.clientY - frame.top + 16}px`;
  };

  const describe = (asked, round, tree) => {
    const first = asked.rounds[0].round, shown = asked.rounds.length;
    at("which").textContent = `round ${round.round} (${index + 1} of ${shown})`;
    at("earlier").disabled = index === 0;
    at("later").disabled = index === shown - 1;
    const said = [`root at position ${round.at}`, `${round.nodes} nodes`, `accepted ${round.path.length - 1}`];
    if (round.tokens.length - 1 < round.nodes) said.push(`${round.tokens.length - 1} nodes drawn`);
    if (round.linear !== null) said.push(`the first choices alone would give ${round.linear}`);
    if (round.gap !== null) said.push(`oracle gap ${round.gap}`);
    if (shown < asked.whole) said.push(`this request has ${asked.whole} rounds`);
    at("facts").textContent = said.join(", ") + ".";
    const texts = asked.rounds.map((one) => one.text);
    at("before").textContent = (first ? "… " : "") + texts.slice(0, index).join("");
    at("accepted").textContent = round.text;
    at("after").textContent = texts.slice(index + 1).join("");
  };

  const step = (rounds) => {
    const to = index + rounds;
    if (to >= 0 && to < data.requests[request].rounds.length) {
      index = to;
      draw();
    }
  };
  const choose = (to) => {
    if (to < 0 || to >= data.requests.length) return;
    request = to;
    index = 0;
    chooser.value = String(to);
    draw();
  };

  data.requests.forEach((one, number) => chooser.append(new Option(one.name, String(number))));
  chooser.addEventListener("change", () => choose(Number(chooser.value)));
  at("earlier").addEventListener("click", () => step(-1));
  at("later").addEventListener("click", () => step(1));
  document.addEventListener("keydown", (event) => {
    if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    const inside = viewer.contains(event.target) && event.target !== chooser;
    if (!inside && event.target !== document.body) return;
    const moves = { ArrowLeft: () => step(-1), ArrowRight: () => step(1) };
    if (inside) Object.assign(moves, { ArrowUp: () => choose(request - 1), ArrowDown: () => choose(request + 1) });
    if (!(event.key in moves)) return;
    event.preventDefault();
    moves[event.key]();
  });
  let width = 0;
  new ResizeObserver(() => {
    if (viewer.clientWidth === width) return;
    width = viewer.clientWidth;
    requestAnimationFrame(draw);
  }).observe(viewer);
})();
