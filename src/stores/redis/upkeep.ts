// What an open, the maintenance and an operator ask of the store itself: its epoch, its restores, what the server promises, its integrity.
import type { Finding, Upkeep } from "../port.ts";
import type { Connection } from "./connection.ts";
import { integrity, repair } from "./integrity.ts";

export function upkeep(connection: Connection): Upkeep {
  return {
    raiseEpoch: async () => Number(await connection.eval("raiseEpoch")),
    async noticeRestore() {
      return ((await connection.eval("noticeRestore")) as string) || null;
    },
    advice: async () => adviceOf(await serverFacts(connection)),
    integrity: () => integrity(connection),
    repair: () => repair(connection),
  };
}

export type ServerFacts = Readonly<Record<string, string | number | boolean>>;

/** What the server says about itself. A user without the right to ask it gets what the store knows alone. */
export async function serverFacts(connection: Connection): Promise<ServerFacts> {
  const [runs, lost] = (await connection.command("HMGET", `${connection.tag}meta`, "runs", "lost")) as (
    | string
    | null
  )[];
  const { epoch, ops } = connection.seen;
  const own = { epoch, operations: ops, runs: Number(runs ?? 0), operationsLost: Number(lost ?? 0) };
  const info = await serverInfo(connection);
  if (info === null) return own;
  const shown: Record<string, string | number | boolean> = {};
  for (const name of SHOWN) if (info.has(name)) shown[name] = info.get(name)!;
  return { ...own, ...shown };
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

function adviceOf(facts: ServerFacts): readonly Finding[] {
  const found: Finding[] = [];
  const add = (level: Finding["level"], text: string): void => void found.push({ level, text });
  if (facts["aof_enabled"] === undefined) {
    add("warning", "This user may not ask for INFO, so what the server keeps after a crash is not known.");
    return found;
  }
  if (facts["aof_enabled"] === "1") add("ok", "The server keeps an append-only file.");
  else
    add(
      "warning",
      "The server keeps no append-only file: a crash of it loses everything since the latest snapshot. Set `appendonly yes`.",
    );
  if (facts["maxmemory_policy"] !== "noeviction" && facts["maxmemory_policy"] !== undefined)
    add("error", `maxmemory-policy is ${String(facts["maxmemory_policy"])}: the server may drop jobs. Set noeviction.`);
  if (Number(facts["evicted_keys"] ?? 0) > 0)
    add(
      "warning",
      `The server has dropped ${String(facts["evicted_keys"])} keys since it started, of this store or another.`,
    );
  if (Number(facts["operationsLost"]) > 0)
    add(
      "warning",
      `When the server started last, ${String(facts["operationsLost"])} operation(s) were missing that processes knew of.`,
    );
  return found;
}
