// Dark or light: as the system says, or as was chosen here. Runs before the page is painted.
(function () {
  const NAME = "bpals.theme";
  const ORDER = ["system", "dark", "light"];
  const root = document.documentElement;
  function apply(theme) {
    if (theme === "system") root.removeAttribute("data-theme");
    else root.setAttribute("data-theme", theme);
  }
  let theme = localStorage.getItem(NAME) || "system";
  if (!ORDER.includes(theme)) theme = "system";
  apply(theme);
  document.addEventListener("DOMContentLoaded", function () {
    const button = document.getElementById("theme");
    const say = () => (button.textContent = `Theme: ${theme}`);
    button.hidden = false;
    say();
    button.addEventListener("click", function () {
      theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
      localStorage.setItem(NAME, theme);
      apply(theme);
      say();
    });
    const logout = document.getElementById("logout");
    if (!logout) return;
    logout.hidden = false;
    logout.addEventListener("click", async function () {
      const unsent = Object.keys(localStorage).some((name) => name.startsWith("bpals.outbox."));
      // What is not sent stays in this browser until its reader comes back.
      if (unsent && !confirm("Something you wrote is not yet sent. Log out all the same? It stays in this browser.")) return;
      const reply = await fetch("/logout", { method: "POST", credentials: "same-origin" }).catch(() => null);
      if (reply && reply.ok) location.assign("/login");
    });
  });
})();
