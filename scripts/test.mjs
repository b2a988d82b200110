// Runs the tests with Node's own runner and ends with its summary. `npm test` runs all of them; `npm test -- <files or options>`
// passes on what it is given, and the files named there replace the whole.
import { spawn } from "node:child_process";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";

const given = process.argv.slice(2);
const files = given.filter((argument) => !argument.startsWith("-"));
const options = given.filter((argument) => argument.startsWith("-"));

const settings = [
  "--test",
  // Two files at a time: the tests start and kill processes of their own, and more at once on two cores makes them wait on
  // each other instead of on facts.
  "--test-concurrency=2",
  // For what hangs: no single test may take longer.
  "--test-timeout=300000",
  "--test-reporter=spec",
  "--disable-warning=ExperimentalWarning",
];
const runner = spawn(
  process.execPath,
  [...settings, ...options, ...(files.length > 0 ? files : ["test/**/*.test.ts"])],
  {
    cwd: fileURLToPath(new URL("../", import.meta.url)),
    stdio: "inherit",
  },
);

// Ctrl-C reaches the runner by the terminal; this process waits for its summary instead of dying before it.
process.on("SIGINT", () => {});
process.on("SIGTERM", () => runner.kill("SIGTERM"));
runner.on("exit", (code, signal) => {
  process.exitCode = code ?? 128 + (signal === null ? 0 : constants.signals[signal]);
});
