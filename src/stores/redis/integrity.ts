// The check of a whole store, and the repair of its indexes. A job's own record is the truth: everything else follows from the records, so the
// repair removes all of it and builds it again, a piece at a time. Meanwhile, and after a repair that was interrupted, every other call is refused.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import { NO_COUNTERS } from "../../job/job.ts";
import { release } from "../../job/transitions.ts";
import { systemClock, systemRandom } from "../../platform/clock.ts";
import type { StoreDoctor } from "../store-parts.ts";
import type { RedisAddress } from "./address.ts";
import { Connection } from "./connection.ts";
import type { Reply } from "./driver.ts";
import { changeArgs, fieldsOf, inputOwner, keptSteps, unchecked } from "./encoding.ts";
import { wrapError, openingError } from "./errors.ts";
import { checkFeatures, OF_FEATURES, repairFeatures } from "./features-integrity.ts";
import { channelOf, subscribers } from "./liveness.ts";

const MAX_FINDINGS = 100;
/** Names in one call: about 1 ms of the server. */
const NAMES = 1_000;
/** A store that is written to meanwhile is walked again: sizes that were read at different moments prove nothing. */
const MAX_WALKS = 3;

/** Indexes whose names follow from the number of a kind, and from that of a worker. Types as in lua/integrity.ts. */
const COUNTED = ["rd", "rn", "jobs"] as const;
const OF_KIND = ["qrs:", "zz:", "zu:", "zv:", "shk:", "st3:", "st4:", "st5:", "hdk:"] as const;
const OF_WORKER = ["sheld:", "scc:"] as const;
const OF_STORE = ["zk", "xp", "doors", "dl", "ws", "wi", "fleet", "kinds", "kc", "rk", "uk", "kp"] as const;
const OF_COLLECTIONS = ["ni", "nl", "nd", "nt", "nc", "pz"] as const;

/** What is wrong, at most 100 findings. While others write, entries that are too many are not found. */
export async function integrity(connection: Connection): Promise<readonly string[]> {
  for (let walks = 1; ; walks++) {
    // What is not forgotten of an ended wait would look like entries that are too many. Without any a check writes nothing: a server that takes no writes is checked, too.
    while ((await connection.command("EXISTS", `${connection.tag}agl`)) === 1) await connection.eval("forgetWaits");
    const before = await operations(connection);
    const sums = new Map<string, number>((await namedIndexes(connection)).flatMap(sizesOf).map((name) => [name, 0]));
    const workers = await checkWorkers(connection);
    const features = await checkFeatures(connection);
    const collected = await checkCollections(connection);
    const found = [
      ...(await checkJobs(connection, sums)),
      ...workers.missing,
      ...features.missing,
      ...collected.missing,
    ];
    if (found.length >= MAX_FINDINGS) return found.slice(0, MAX_FINDINGS);
    const wrong = [
      ...workers.tooMany,
      ...features.tooMany,
      ...collected.tooMany,
      ...(await checkSizes(connection, sums)),
    ];
    if (wrong.length === 0) return found;
    if ((await operations(connection)) === before) return [...found, ...wrong].slice(0, MAX_FINDINGS);
    if (walks === MAX_WALKS) return found;
  }
}

async function operations(connection: Connection): Promise<Reply> {
  return connection.command("HGET", `${connection.tag}meta`, "ops");
}

/** What has to have the right size because of an index: of the ready jobs of a kind also what is counted in its settings. */
function sizesOf(index: string): string[] {
  const counted = /^q(.*)rs:(\d+)$/s.exec(index);
  return counted ? [index, ...COUNTED.map((field) => `c${counted[1]}kc\u001F${field}:${counted[2]}`)] : [index];
}

/** Each with its type in front. */
async function namedIndexes(connection: Connection): Promise<string[]> {
  const [kinds, workers] = ((await connection.eval("extent")) as string[]).map(Number) as [number, number];
  const names = (of: readonly string[], count: number): string[] =>
    Array.from({ length: count }, (_, at) =>
      of.map((name) => `${name[0]}${connection.tag}${name.slice(1)}${at + 1}`),
    ).flat();
  return [...names(OF_KIND, kinds), ...names(OF_WORKER, workers)];
}

async function checkJobs(connection: Connection, sums: Map<string, number>): Promise<readonly string[]> {
  const found: string[] = [];
  for (let page = "0"; page !== "" && found.length < MAX_FINDINGS;) {
    const [jobs, wrong, next, flat] = (await connection.eval("check", [page])) as unknown as [
      [string, string, string, string, string[]][],
      string[],
      string,
      (string | number)[],
    ];
    found.push(...wrong);
    for (let at = 0; at < flat.length; at += 2)
      sums.set(String(flat[at]), (sums.get(String(flat[at])) ?? 0) + Number(flat[at + 1]));
    for (const [id, kind, input, result, steps] of jobs) {
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
  return found;
}

type CheckedWorkers = readonly [
  wrong: readonly string[],
  next: string,
  count: number,
  sizes: readonly number[],
  kindsSeen: readonly number[],
  kindsKept: readonly number[],
];

async function checkWorkers(
  connection: Connection,
): Promise<{ readonly missing: readonly string[]; readonly tooMany: readonly string[] }> {
  const missing: string[] = [];
  let count = 0;
  const kinds = [0, 0, 0];
  for (let from = "1"; ;) {
    const reply = (await connection.eval("checkWorkers", [from])) as unknown as CheckedWorkers;
    const [wrong, next, some, sizes, kindsSeen, kindsKept] = reply;
    missing.push(...wrong);
    count += some;
    for (const at of kinds.keys()) kinds[at]! += kindsSeen[at]!;
    from = next;
    if (next !== "") continue;
    const ofWorkers = `the indexes of workers have ${sizes.join(", ")} entries, and there are ${count} workers`;
    const ofKinds = `the indexes of kinds (rk, uk, kp) have ${kindsKept.join(", ")} entries, and ${kinds.join(", ")} of them are kinds`;
    const tooMany = [
      ...(sizes.some((size) => size !== count) ? [ofWorkers] : []),
      ...(kinds.some((size, at) => size !== kindsKept[at]) ? [ofKinds] : []),
    ];
    return { missing, tooMany };
  }
}

type CheckedCollections = readonly [
  next: string,
  wrong: readonly string[],
  count: number,
  open: number,
  states: readonly (string | number)[],
  inputs: readonly (readonly [id: string, input: string])[],
  sizes: readonly [number, number, number],
  kept: readonly string[],
  parked: readonly [messages: number, listed: number],
];

/** Collections by their records, and what those have to be found by. */
async function checkCollections(
  connection: Connection,
): Promise<{ readonly missing: readonly string[]; readonly tooMany: readonly string[] }> {
  const missing: string[] = [];
  const states = new Map<string, number>();
  let [count, open] = [0, 0];
  for (let from = "1"; ;) {
    const reply = (await connection.eval("checkCollections", [from])) as unknown as CheckedCollections;
    const [next, wrong, some, someOpen, someStates, inputs, sizes, kept, [messages, listed]] = reply;
    missing.push(...wrong);
    count += some;
    open += someOpen;
    for (let at = 0; at < someStates.length; at += 2)
      states.set(String(someStates[at]), (states.get(String(someStates[at])) ?? 0) + Number(someStates[at + 1]));
    for (const [id, input] of inputs)
      if (!unchecked(input, id).intact) missing.push(`the input of collection ${id} does not match its checksum`);
    from = next;
    if (next !== "") continue;
    const tooMany: string[] = [];
    if (sizes.join() !== [count, count, open].join())
      tooMany.push(
        `the indexes of collections have ${sizes.join(", ")} entries, and there are ${count}, ${open} of them open`,
      );
    const counted = Object.entries(fieldsOf(kept)).filter(([name, value]) => Number(value) !== (states.get(name) ?? 0));
    const lost = [...states].filter(([name, value]) => value > 0 && !kept.includes(name));
    if (counted.length + lost.length > 0)
      tooMany.push(
        `the counts of collections by kind and state are wrong: ${[...counted, ...lost].map(([name]) => name).join(", ")}`,
      );
    for (let cursor = "0"; cursor !== "";) {
      const [following, lacking] = (await connection.eval("checkParked", [cursor])) as [string, string[]];
      missing.push(...lacking);
      cursor = following;
    }
    if (messages !== listed) tooMany.push(`${messages} messages are parked, and ${listed} are listed`);
    return { missing, tooMany };
  }
}

async function checkSizes(connection: Connection, sums: ReadonlyMap<string, number>): Promise<readonly string[]> {
  const found: string[] = [];
  const all = [...sums];
  for (let at = 0; at < all.length && found.length < MAX_FINDINGS; at += NAMES) {
    const piece = all.slice(at, at + NAMES);
    const args = piece.flatMap(([name, size]) => [name, String(size)]);
    found.push(...((await connection.eval("sizes", [String(piece.length), ...args])) as string[]));
  }
  return found;
}

/** Builds all indexes again, and returns what is still wrong: records, inputs, results and steps that are damaged themselves. */
export async function repair(connection: Connection): Promise<readonly string[]> {
  await connection.eval("repairBegin");
  const { tag } = connection;
  const names = [
    ...(await namedIndexes(connection)).flatMap((name) =>
      name.startsWith("q") ? ofReady(name.slice(1)) : [name.slice(1)],
    ),
    ...[...OF_STORE, ...OF_FEATURES, ...OF_COLLECTIONS].map((of) => tag + of),
  ];
  for (let at = 0; at < names.length; at += NAMES) {
    const piece = names.slice(at, at + NAMES);
    await connection.eval("repairClear", [String(piece.length), ...piece]);
  }
  await inPieces(connection, "repairClearPages", "0");
  await inPieces(connection, "repairWorkers", "1");
  await inPieces(connection, "repairFill", "0", changeArgs(RELEASE, ""));
  await inPieces(connection, "repairCollections", "1");
  await inPieces(connection, "repairParked", "0");
  await repairFeatures(connection);
  await connection.eval("repairEnd");
  return integrity(connection);
}

const RELEASE = release(
  { id: "", state: "running", counters: NO_COUNTERS },
  "its worker has no row, and no recovery would find it",
);

/** Where the order of its chunks is, and the keys of the kind's batches. */
function ofReady(rows: string): string[] {
  return ["rs:", "r:", "bk:"].map((name) => rows.replace(/rs:(?=\d+$)/, name));
}

async function inPieces(
  connection: Connection,
  script: "repairClearPages" | "repairWorkers" | "repairFill" | "repairCollections" | "repairParked",
  first: string,
  more: readonly string[] = [],
): Promise<void> {
  for (let from = first; from !== ""; from = (await connection.eval(script, [from, ...more])) as string);
}

/** For `outlive check`: on a connection of its own, also when an interrupted repair keeps the store from being opened. */
export function redisDoctor(address: RedisAddress): StoreDoctor {
  const connected = async <T>(doing: string, use: (connection: Connection) => Promise<T>): Promise<T> => {
    const connection = new Connection({ address, random: systemRandom, clock: systemClock });
    try {
      await connection.identity().catch((thrown: unknown) => {
        throw openingError(address.shown, thrown);
      });
      return await use(connection);
    } catch (thrown) {
      throw wrapError(doing, thrown);
    } finally {
      await connection.close();
    }
  };
  return {
    check: () =>
      connected("checking the integrity", async (connection) => {
        const startedMono = systemClock.mono();
        const interrupted = (await connection.command("HGET", `${connection.tag}meta`, "repair")) !== null;
        const findings = [
          ...(interrupted ? ["a repair was interrupted, and every other call is refused until one has ended"] : []),
          ...(await integrity(connection)),
        ];
        const tookMs = Math.round(systemClock.mono() - startedMono);
        return { verdict: findings.length === 0 ? "PASSED" : "FAILED", depth: "full", findings, tookMs };
      }),
    repair: ({ onStep }) =>
      connected("repairing it", async (connection) => {
        await assertNobodyWorks(connection);
        const findings = await repair(connection);
        const detail = "all indexes were built again from the records of the jobs, batches, schedules and collections";
        const step = { step: "reindex", ok: findings.length === 0, detail } as const;
        onStep?.(step);
        return { steps: [step], sound: findings.length === 0, findings, salvage: null };
      }),
  };
}

/** The indexes of workers may be damaged, too, so their rows are read by their numbers. */
async function assertNobodyWorks(connection: Connection): Promise<void> {
  for (let from = "1"; from !== "";) {
    const [next, live] = (await connection.eval("liveWorkers", [from])) as [string, string[]];
    from = next;
    if (live.length === 0) continue;
    const channels = live.map((id) => channelOf(connection.tag, id));
    const counts = await subscribers(connection, channels);
    const [alive] = live.filter((_, at) => counts.get(channels[at]!)! > 0);
    if (alive !== undefined)
      throw new OutliveError(
        ErrorCode.storeBusy,
        `Worker ${alive} is alive, and no worker may run while the store is repaired.`,
        "Nothing was changed. Stop all workers, then run it again.",
        { worker: alive },
      );
  }
}
