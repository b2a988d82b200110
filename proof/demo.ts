// `npm run demo`: `outlive demo`, and for `--store postgres` a server of its own to run it on, started from the machine's programs.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";
import { atEnd, cleanUpInEveryCase } from "../src/torture/run.ts";
import { PostgresServer } from "./servers/postgres-server.ts";

const CLI = fileURLToPath(new URL("../src/cli/bin.ts", import.meta.url));
const ADDRESS = "OUTLIVE_DEMO_POSTGRES_URL";
const args = process.argv.slice(2);

cleanUpInEveryCase();
const env = wantsServer() ? { ...process.env, [ADDRESS]: await serverUrl() } : process.env;
const demo = spawn(process.execPath, [...process.execArgv, CLI, "demo", ...args], { stdio: "inherit", env });
// Before the server, whose sessions the demo uses until its end.
atEnd(() => demo.kill("SIGTERM"));
const [code, signal] = (await once(demo, "exit")) as [number | null, NodeJS.Signals | null];
process.exitCode = code ?? 128 + constants.signals[signal!];

function wantsServer(): boolean {
  const at = args.indexOf("--store");
  const isNamed = args.includes("--store=postgres") || (at >= 0 && args[at + 1] === "postgres");
  return isNamed && !args.includes("--help") && !process.env[ADDRESS];
}

/** With fsync on: what the demo shows must hold for a server as people run it. */
async function serverUrl(): Promise<string> {
  const server = await PostgresServer.create({ fsync: true, mayInstall: false });
  atEnd(() => {
    if (!args.includes("--keep")) return server.destroyNow();
    const start = server.leaveNow();
    process.stderr.write(`The server is kept: ${server.folder}, at ${server.url()} once it is started:\n${start}\n`);
  });
  return server.url();
}
