"use strict";
(() => {
  const root = document.documentElement;

  // The page is light or dark as the system is, until the reader changes it. A page from a file may have no storage.
  const toggle = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const remember = (theme) => { try { localStorage.setItem("slipstream-theme", theme); } catch { /* not kept then */ } };
  const remembered = () => { try { return localStorage.getItem("slipstream-theme"); } catch { return null; } };
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const name = () => { toggle.textContent = isDark() ? "Light" : "Dark"; toggle.setAttribute("aria-label", isDark() ? "Use light colours" : "Use dark colours"); };
  const kept = remembered();
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  toggle.hidden = false;
  name();
  system.addEventListener("change", name);
  toggle.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; remember(root.dataset.theme); name(); });

  // A picture's title is for screen readers. Browsers would also show it as a second hint beside the page's own hint.
  for (const title of document.querySelectorAll("svg[role=img] > title")) {
    const picture = title.parentElement;
    picture.setAttribute("aria-label", title.textContent);
    picture.setAttribute("aria-describedby", picture.querySelector("desc").id);
    picture.removeAttribute("aria-labelledby");
    title.remove();
  }

  // Hints that follow the pointer. Their text is never read as markup.
  const tip = document.getElementById("tip");
  const place = (event) => {
    const room = 12;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + room, document.documentElement.clientWidth - box.width - room);
    const y = event.clientY + room + box.height > innerHeight ? event.clientY - box.height - room : event.clientY + room;
    tip.style.left = `${Math.max(room, x)}px`;
    tip.style.top = `${Math.max(room, y)}px`;
  };
  document.addEventListener("pointerover", (event) => {
    const shape = event.target instanceof Element ? event.target.closest("[data-tip]") : null;
    tip.hidden = !shape;
    if (shape) { tip.textContent = shape.dataset.tip; place(event); }
  });
  document.addEventListener("pointermove", (event) => { if (!tip.hidden) place(event); });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") tip.hidden = true; });
  document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });

  // A column is sorted by the number of each cell, or by its text if it has no number. Empty cells come last.
  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.order !== undefined ? Number(cell.dataset.order) : cell.textContent.trim();
  };
  const isEmpty = (one) => one === "" || Number.isNaN(one);
  const compare = (one, other) => {
    if (typeof one === "number" && typeof other === "number") return one - other;
    if (typeof one !== typeof other) return typeof one === "number" ? -1 : 1;
    return one.localeCompare(other, undefined, { numeric: true });
  };
  const sort = (heading, column) => {
    const table = heading.closest("table");
    const body = table.tBodies[0];
    const isUp = heading.getAttribute("aria-sort") === "descending" || (!heading.hasAttribute("aria-sort") && !heading.classList.contains("r"));
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", isUp ? "ascending" : "descending");
    const rows = [...body.rows].map((row) => [value(row, column), row]);
    const full = rows.filter(([key]) => !isEmpty(key)).sort((a, b) => (isUp ? 1 : -1) * compare(a[0], b[0]));
    body.append(...full.map(([, row]) => row), ...rows.filter(([key]) => isEmpty(key)).map(([, row]) => row));
  };
  for (const table of document.querySelectorAll("table[data-sortable]")) {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      heading.querySelector("button").addEventListener("click", () => sort(heading, column));
    });
  }
})();
