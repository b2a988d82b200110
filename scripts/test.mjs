// Runs the tests with Node's own runner and ends with its summary. `npm test` runs all of them; `npm test -- <files or options>`
// passes on what it is given, and the files named there replace the whole. It also owns the PostgreSQL server that tests share:
// started when the first of them asks for it over a socket, and stopped when the run has ended, however it ended.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { constants, tmpdir } from "node:os";
import { join } from "node:path";
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
const folder = mkdtempSync(join(tmpdir(), "outlive-test-run-"));
const socket = join(folder, "postgres");
/** @type {Promise<import("../test/support/postgres-server.ts").PostgresServer> | undefined} */
let postgres;
const desk = createServer((connection) => {
  connection.on("error", () => {});
  postgres ??= import("../test/support/postgres-server.ts").then(({ PostgresServer }) =>
    PostgresServer.create({ fsync: false }),
  );
  postgres.then(
    (server) => connection.end(server.url()),
    (thrown) => connection.end(String(thrown?.message ?? thrown)),
  );
});
desk.listen(socket);
desk.unref();

const runner = spawn(
  process.execPath,
  [...settings, ...options, ...(files.length > 0 ? files : ["test/**/*.test.ts"])],
  {
    cwd: fileURLToPath(new URL("../", import.meta.url)),
    stdio: "inherit",
    env: { ...process.env, OUTLIVE_TEST_POSTGRES_SOCKET: socket },
  },
);

// Ctrl-C reaches the runner by the terminal; this process waits for its summary instead of dying before it.
process.on("SIGINT", () => {});
process.on("SIGTERM", () => runner.kill("SIGTERM"));
runner.on("exit", (code, signal) => {
  process.exitCode = code ?? 128 + (signal === null ? 0 : constants.signals[signal]);
  void cleanUp();
});

async function cleanUp() {
  desk.close();
  await postgres?.then(
    (server) => server.destroy(),
    () => {},
  );
  rmSync(folder, { recursive: true, force: true });
}
