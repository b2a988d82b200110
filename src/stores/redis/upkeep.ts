// What an open, the maintenance and an operator ask of the store itself: its epoch, its restores, what the server promises, its integrity.
import type { Finding, Upkeep } from "../port.ts";
import { batchInconsistencies } from "./batches.ts";
import type { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { inputOwner, keptSteps, unchecked } from "./encoding.ts";

const MAX_FINDINGS = 100;

export function upkeep(connection: Connection): Upkeep {
  return {
    raiseEpoch: async () => Number(await connection.eval("raiseEpoch")),
    async noticeRestore() {
      return ((await connection.eval("noticeRestore")) as string) || null;
    },
    advice: async () => adviceOf(await serverFacts(connection)),
    integrity: () => integrity(connection),
    inconsistencies: () => batchInconsistencies(connection),
    // What it finds can't be put right without losing something.
    repair: () => integrity(connection),
  };
}

async function integrity(connection: Connection): Promise<readonly string[]> {
  const found: string[] = [];
  for (let page = "0"; page !== "" && found.length < MAX_FINDINGS;) {
    const [jobs, wrong, next] = (await connection.eval("check", [page])) as unknown as [Reply[][], string[], string];
    found.push(...wrong);
    for (const [id, kind, input, result, steps] of jobs as unknown as [string, string, string, string, string[]][]) {
      const broken = [
        ...(unchecked(input, inputOwner(kind)).intact ? [] : ["input"]),
        ...(result === "" || unchecked(result, id).intact ? [] : ["result"]),
        ...keptSteps(id, steps)
          .filter(({ intact }) => !intact)
          .map(({ name }) => `step ${name}`),
      ];
      found.push(...broken.map((what) => `the ${what} of job ${id} does not match its checksum`));
    }
    page = next;
  }
  return found.slice(0, MAX_FINDINGS);
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
