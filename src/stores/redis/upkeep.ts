// What an open, the maintenance and an operator ask of the store itself: its epoch, its restores, what the server promises, its integrity.
import type { Finding, Opening, Upkeep } from "../port.ts";
import { NOTHING_CHECKED, type StoreFindings } from "../store-parts.ts";
import { batchInconsistencies } from "./batches.ts";
import type { Connection } from "./connection.ts";
import { integrity, repair } from "./integrity.ts";
import { showsSubscriptions } from "./liveness.ts";
import { listWorkers } from "./workers.ts";

export function upkeep(connection: Connection): Upkeep {
  return {
    raiseEpoch: async () => Number(await connection.eval("raiseEpoch")),
    async noticeRestore() {
      return ((await connection.eval("noticeRestore")) as string) || null;
    },
    async latestOpening() {
      const text = (await connection.command("HGET", `${connection.tag}meta`, "opening")) as string | null;
      return text === null ? null : (JSON.parse(text) as Opening);
    },
    async noteOpening(opening) {
      await connection.eval("noteOpening", [JSON.stringify(opening)]);
    },
    async pending(kinds) {
      const [isNow, next, isQuiet, changes] = (await connection.eval("pending", [String(kinds.length), ...kinds])) as [
        number,
        string,
        number,
        string,
      ];
      // Every script that writes counts, but a heartbeat.
      return {
        now: isNow === 1,
        nextInMs: next === "" ? null : Number(next),
        changes: Number(changes),
        isQuiet: isQuiet === 1,
      };
    },
    advice: () => adviceOf(connection),
    integrity: () => integrity(connection),
    inconsistencies: () => batchInconsistencies(connection),
    repair: () => repair(connection),
  };
}

export type ServerFacts = Readonly<Record<string, string | number | boolean>>;

/** What the server says about itself. A user without the right to ask it gets what the store knows alone. */
export async function serverFacts(connection: Connection): Promise<ServerFacts> {
  const fields = ["runs", "lost", "jobsAgain", "endsAgain"];
  const meta = (await connection.command("HMGET", `${connection.tag}meta`, ...fields)) as (string | null)[];
  const [runs, operationsLost, jobsSentAgain, endsSentAgain] = meta.map(Number) as [number, number, number, number];
  const { epoch, ops } = connection.seen;
  const own = { epoch, operations: ops, runs, operationsLost, jobsSentAgain, endsSentAgain };
  const info = await serverInfo(connection);
  if (info === null) return own;
  const shown: Record<string, string | number | boolean> = {};
  for (const name of SHOWN) if (info.has(name)) shown[name] = info.get(name)!;
  const { appendfsync } = await serverSettings(connection, ["appendfsync"]);
  return { ...own, ...shown, ...(appendfsync !== undefined && { appendfsync }) };
}

const SHOWN = [
  "redis_version",
  "valkey_version",
  "role",
  "aof_enabled",
  "aof_last_write_status",
  "rdb_last_bgsave_status",
  "maxmemory",
  "maxmemory_policy",
  "used_memory",
  "evicted_keys",
  "connected_slaves",
] as const;

/** Null: this user may not ask. */
export async function serverInfo(connection: Connection): Promise<ReadonlyMap<string, string> | null> {
  try {
    const text = String(await connection.command("INFO"));
    const pairs = [...text.matchAll(/^([a-z_]+):(.*)\r?$/gm)].map(([, name, value]) => [name!, value!.trim()] as const);
    return new Map(pairs);
  } catch (thrown) {
    if (/NOPERM/.test(String(thrown))) return null;
    throw thrown;
  }
}

/** Settings that INFO does not show. Empty: this user may not ask for them. */
export async function serverSettings(
  connection: Connection,
  names: readonly string[],
): Promise<Readonly<Record<string, string>>> {
  const found: Record<string, string> = {};
  for (const name of names)
    try {
      const reply = await connection.command("CONFIG", "GET", name);
      // RESP3 returns a map, RESP2 a flat list.
      const value = Array.isArray(reply) ? reply[1] : (reply as unknown as Record<string, string>)[name];
      if (value !== undefined) found[name] = String(value);
    } catch {
      // Some services have no CONFIG, and some users may not call it.
      return {};
    }
  return found;
}

const SETTINGS = ["appendfsync", "no-appendfsync-on-rewrite", "min-replicas-to-write"];

const FLUSHED: Readonly<Record<string, readonly [Finding["level"], string]>> = {
  always: ["ok", "The server flushes every write before it replies: nothing that was acknowledged is lost with it."],
  everysec: ["ok", "The server flushes once a second: a power loss takes the last one to two seconds with it."],
  no: [
    "warning",
    "appendfsync is no: a power loss takes whatever the system has not flushed. Set `appendfsync everysec`.",
  ],
};

async function adviceOf(connection: Connection): Promise<readonly Finding[]> {
  const facts = await serverFacts(connection);
  const found: Finding[] = [];
  const add = (level: Finding["level"], text: string): void => void found.push({ level, text });
  const is = (name: string): string => String(facts[name] ?? "");
  if (facts["aof_enabled"] === undefined)
    add("warning", "This user may not ask for INFO, so what the server keeps after a crash is not known.");
  else {
    const settings = await serverSettings(connection, SETTINGS);
    const version = is("valkey_version") || is("redis_version");
    add("ok", `${is("valkey_version") === "" ? "Redis" : "Valkey"} ${version}, as ${is("role")}.`);
    if (facts["aof_enabled"] !== "1")
      add(
        "warning",
        "The server keeps no append-only file: a crash of it loses everything since the latest snapshot. Set `appendonly yes`.",
      );
    else if (settings["appendfsync"] === undefined)
      add(
        "warning",
        "The server keeps an append-only file. This user may not call CONFIG, so when it is flushed is not known.",
      );
    else add(...(FLUSHED[settings["appendfsync"]] ?? FLUSHED["no"]!));
    if (settings["no-appendfsync-on-rewrite"] === "yes")
      add("warning", "no-appendfsync-on-rewrite is yes: while the file is rewritten nothing is flushed. Set it to no.");
    if (is("aof_last_write_status") === "err")
      add("error", "The server's latest write to its append-only file failed. Check its disk and its log.");
    if (Number(is("connected_slaves")) > 0 && settings["min-replicas-to-write"] === "0")
      add(
        "warning",
        "min-replicas-to-write is 0: a primary that lost its replicas still accepts writes, which are lost when one of them is promoted.",
      );
    if (is("maxmemory_policy") !== "noeviction")
      add("error", `maxmemory-policy is ${is("maxmemory_policy")}: the server may drop jobs. Set noeviction.`);
    if (Number(is("evicted_keys")) > 0)
      add("warning", `The server has dropped ${is("evicted_keys")} keys since it started, of this store or another.`);
  }
  if (Number(facts["operationsLost"]) > 0)
    add(
      "warning",
      `When the server started last, ${is("operationsLost")} operation(s) were missing that processes knew of; ` +
        `${is("jobsSentAgain")} job(s) were enqueued and ${is("endsSentAgain")} end(s) written again.`,
    );
  const live = (await listWorkers(connection, {})).filter(({ state }) => state === "live");
  const unseen = live.filter(({ lock }) => lock.name === null);
  const isSeen = live.length > unseen.length || (await showsSubscriptions(connection));
  if (isSeen !== true) add("warning", isSeen === null ? UNCHECKED : HIDDEN);
  if (unseen.length > 0)
    add(
      "warning",
      `${unseen.length} worker(s) did not see their own subscriptions over other connections (${unseen[0]!.id}): a proxy hides them, or the server refused ` +
        "connections when they registered. Only their heartbeats show that they live, and a death on another host is found after `heartbeat.lease`. Connect " +
        "them to the server itself, and restart them.",
    );
  return found;
}

const HIDDEN =
  "A subscription of this process is not seen by other connections, as behind a proxy that hides it. The same holds for workers that connect like this: only " +
  "their heartbeats show that they live, and a death on another host is found after `heartbeat.lease`. Connect them to the server itself.";
const UNCHECKED =
  "The server refused further connections, so whether it shows a subscription to others is not known. Raise its maxclients, or find what holds its connections.";

/** What an open has to report about the server, by the first process that opens the store in its run. */
export async function openingFindings(connection: Connection): Promise<StoreFindings> {
  const [at, run, lost, jobs, ends] = (await connection.eval("opening")) as string[];
  if (at === undefined) return NOTHING_CHECKED;
  const when = new Date(Number(at)).toISOString();
  const lines = [
    `The server started again, or another one took over, at ${when}: run ${run} of this store.`,
    lost === "0"
      ? "No process that has come back knew of anything that is missing."
      : `It came back ${lost} operation(s) behind what processes knew of: ${jobs} job(s) were enqueued and ${ends} end(s) written again so far.`,
    "What was acknowledged to a process that died in the meantime is not known.",
  ];
  const facts = {
    run: Number(run),
    operationsLost: Number(lost),
    jobsSentAgain: Number(jobs),
    endsSentAgain: Number(ends),
  };
  return { ...NOTHING_CHECKED, notice: { lines, facts } };
}
