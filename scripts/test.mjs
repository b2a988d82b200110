// Runs the tests with Node's own runner and ends with its summary. `npm test` runs all of them; `npm test -- <files or options>`
// passes on what it is given, and the files named there replace the whole. It also owns the PostgreSQL, Redis and RabbitMQ servers that tests
// share: started when the first of them asks for it over a socket, and stopped when the run has ended, however it ended.
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
  // Two files at a time: the tests start and kill processes, and more at once on two cores makes them wait on
  // each other instead of on facts.
  "--test-concurrency=2",
  // For what hangs: no single test may take longer.
  "--test-timeout=300000",
  `--import=${new URL("test-ends.mjs", import.meta.url).href}`,
  "--test-reporter=spec",
  "--test-reporter-destination=stdout",
  `--test-reporter=${new URL("slowest-files.mjs", import.meta.url).href}`,
  "--test-reporter-destination=stdout",
  "--disable-warning=ExperimentalWarning",
];
const folder = mkdtempSync(join(tmpdir(), "outlive-test-run-"));
/** @type {Promise<{ url(): string, destroy(): Promise<void> }>[]} */
const servers = [];
const sockets = {
  OUTLIVE_TEST_POSTGRES_SOCKET: share("postgres", async () => {
    const { PostgresServer } = await import("../test/support/postgres-server.ts");
    return PostgresServer.create({ fsync: false });
  }),
  OUTLIVE_TEST_REDIS_SOCKET: share("redis", async () => {
    const { RedisServer } = await import("../proof/servers/redis-server.ts");
    return RedisServer.create();
  }),
  OUTLIVE_TEST_RABBITMQ_SOCKET: share("rabbitmq", async () => {
    const { RabbitmqServer } = await import("../proof/servers/rabbitmq-server.ts");
    return RabbitmqServer.create();
  }),
};

/**
 * Starts a server when the first test asks for its address at the socket that is returned.
 * @param {string} name
 * @param {() => Promise<{ url(): string, destroy(): Promise<void> }>} start
 */
function share(name, start) {
  /** @type {Promise<{ url(): string, destroy(): Promise<void> }> | undefined} */
  let server;
  const desk = createServer((connection) => {
    connection.on("error", () => {});
    if (server === undefined) servers.push((server = start()));
    server.then(
      (one) => connection.end(one.url()),
      (thrown) => connection.end(String(thrown?.message ?? thrown)),
    );
  });
  const socket = join(folder, name);
  desk.listen(socket);
  desk.unref();
  return socket;
}

const runner = spawn(
  process.execPath,
  [...settings, ...options, ...(files.length > 0 ? files : ["test/**/*.test.ts"])],
  {
    cwd: fileURLToPath(new URL("../", import.meta.url)),
    stdio: "inherit",
    // Tests start thousands of processes that load the same modules. A cache of compiled code saves a command a fifth of its CPU.
    env: { NODE_COMPILE_CACHE: join(folder, "compiled"), ...process.env, ...sockets },
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
  for (const server of servers)
    await server.then(
      (one) => one.destroy(),
      () => {},
    );
  try {
    rmSync(folder, { recursive: true, force: true, maxRetries: 10 });
  } catch (thrown) {
    // A process that a test left behind may still write its compiled code there. The run does not fail for that.
    process.stderr.write(`${folder} was not removed: ${thrown instanceof Error ? thrown.message : String(thrown)}\n`);
  }
}
