// `npm run demo`: `outlive demo`, and for `--store postgres` and `--store redis` a server of its own to run it on, started from the machine's programs.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { constants } from "node:os";
import { fileURLToPath } from "node:url";
import { atEnd, cleanUpInEveryCase } from "../src/torture/run.ts";
import { PostgresServer } from "./servers/postgres-server.ts";
import { RedisServer } from "./servers/redis-server.ts";

const CLI = fileURLToPath(new URL("../src/cli/bin.ts", import.meta.url));
const SERVERS = { postgres: postgresUrl, redis: redisUrl } as const;
const args = process.argv.slice(2);

cleanUpInEveryCase();
const wanted = wantedServer();
const env = wanted ? { ...process.env, [addressOf(wanted)]: await SERVERS[wanted]() } : process.env;
const demo = spawn(process.execPath, [...process.execArgv, CLI, "demo", ...args], { stdio: "inherit", env });
// Before the server, whose sessions the demo uses until its end.
atEnd(() => demo.kill("SIGTERM"));
const [code, signal] = (await once(demo, "exit")) as [number | null, NodeJS.Signals | null];
process.exitCode = code ?? 128 + constants.signals[signal!];

function wantedServer(): keyof typeof SERVERS | undefined {
  const at = args.indexOf("--store");
  const names = Object.keys(SERVERS) as (keyof typeof SERVERS)[];
  const named = names.find((name) => args.includes(`--store=${name}`) || (at >= 0 && args[at + 1] === name));
  return named && !args.includes("--help") && !process.env[addressOf(named)] ? named : undefined;
}

function addressOf(name: string): string {
  return `OUTLIVE_DEMO_${name.toUpperCase()}_URL`;
}

/** Every write is flushed before its reply. */
async function redisUrl(): Promise<string> {
  const server = await RedisServer.create({ fsync: "always", mayInstall: false });
  atEnd(() => server.destroyNow());
  return server.url();
}

/** With fsync on: what the demo shows must hold for a server as people run it. */
async function postgresUrl(): Promise<string> {
  const server = await PostgresServer.create({ fsync: true, mayInstall: false });
  atEnd(() => {
    if (!args.includes("--keep")) return server.destroyNow();
    const start = server.leaveNow();
    process.stderr.write(`The server is kept: ${server.folder}, at ${server.url()} once it is started:\n${start}\n`);
  });
  return server.url();
}
