// Installs the development dependencies when they are missing or no longer those of package-lock.json, and otherwise does
// nothing, quickly and silently. Every `pre` script runs it, on a machine's own Node when nothing is installed yet: it must
// run on Node 20 and import nothing but Node itself.
import { spawnSync } from "node:child_process";
import { createHash } from "node:crypto";
import { readFileSync, rmSync, writeFileSync } from "node:fs";

const root = new URL("../", import.meta.url);
// Inside node_modules, so that removing node_modules removes the stamp with it.
const stamp = new URL("node_modules/.outlive-installed", root);

const wanted = fingerprint();
if (readIfThere(stamp) !== wanted) {
  // Away first, so that an installation killed half-way is not taken for a whole one.
  rmSync(stamp, { force: true });
  install();
  writeFileSync(stamp, wanted);
}

function fingerprint() {
  const lock = readIfThere(new URL("package-lock.json", root));
  if (lock === undefined) {
    fail("package-lock.json is missing. Restore it with `git checkout package-lock.json`, then try again.");
  }
  // A folder that is shared between machines (a container's mount) holds the wrong binaries for one of them.
  return `${createHash("sha256").update(lock).digest("hex")} ${process.platform} ${process.arch}\n`;
}

function install() {
  console.error("Installing the development dependencies (npm ci), once ...");
  const started = performance.now();
  // On Windows npm is a .cmd file, which only a shell can start. npm's own output goes to stderr: the caller's stdout belongs
  // to the command that follows, which may print JSON.
  const npm = spawnSync("npm ci --no-audit --no-fund --loglevel=error", {
    cwd: root,
    shell: true,
    stdio: ["ignore", 2, 2],
    env: installEnvironment(),
  });
  if (npm.error !== undefined) {
    fail(`npm could not be started: ${npm.error.message}. Install npm 10 or later, then try again.`);
  }
  if (npm.status !== 0) {
    fail(
      `npm ci failed (${npm.signal ?? `exit code ${npm.status}`}); its reason is above. ` +
        "If the registry could not be reached, try again when it can; if package.json and package-lock.json disagree, " +
        "run `npm install` and commit the lock file; otherwise remove node_modules and try again.",
    );
  }
  console.error(`Installed in ${((performance.now() - started) / 1000).toFixed(1)} s.`);
}

// npm hands its own options to its scripts as variables, and a nested npm obeys them: `npm test --omit=dev` or
// `npm run demo --dry-run` must not leave half an installation with a valid stamp.
function installEnvironment() {
  const environment = { ...process.env };
  for (const name of Object.keys(environment)) {
    if (/^(npm_config_(omit|only|production|dry_run|ignore_scripts|global|prefix|json)|NODE_ENV)$/i.test(name))
      delete environment[name];
  }
  return environment;
}

/** @param {URL} file */
function readIfThere(file) {
  try {
    return readFileSync(file, "utf8");
  } catch {
    return undefined;
  }
}

/**
 * @param {string} message
 * @returns {never}
 */
function fail(message) {
  console.error(message);
  process.exit(1);
}
