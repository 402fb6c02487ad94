"use strict";

// Tables: a click on a title sorts by that column, numbers by their first figure.
for (const table of document.querySelectorAll("table.sortable")) {
  const titles = [...table.tHead.rows[0].cells];
  titles.forEach((title, column) => {
    title.tabIndex = 0;
    const sort = () => {
      const falling = title.getAttribute("aria-sort") === "descending" || !title.classList.contains("n")
        && title.getAttribute("aria-sort") !== "ascending";
      titles.forEach((other) => other.removeAttribute("aria-sort"));
      title.setAttribute("aria-sort", falling ? "ascending" : "descending");
      const body = table.tBodies[0];
      const value = (row) => {
        const text = row.cells[column].textContent;
        const number = parseFloat(text.replace("−", "-"));
        return title.classList.contains("n") ? (Number.isNaN(number) ? -Infinity : number) : text;
      };
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [value(a), value(b)];
        const order = typeof x === "number" ? x - y || 0 : x.localeCompare(y, undefined, { numeric: true });
        return falling ? order : -order;
      });
      body.append(...rows);
    };
    title.addEventListener("click", sort);
    title.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort();
      }
    });
  });
}

// Paper shows what the screen folds away.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => { one.open = true; }));
