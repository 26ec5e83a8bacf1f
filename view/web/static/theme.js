// Runs before the page is drawn: the chosen colors, else those of the system.
"use strict";
try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "";
} catch {
  // No storage: use the colors of the system.
}
