// Before anything is drawn: the colours that the visitor has chosen here, else the system's.
"use strict";
try {
  document.documentElement.dataset.theme = localStorage.getItem("theme") || "";
} catch {
  // Nothing may be kept here: as the system has it.
}
