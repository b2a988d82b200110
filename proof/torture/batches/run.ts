// Batches under kills: submitters submit and are killed in the middle of it, workers run rows and are killed, sometimes all processes at once, and
// the server of the store, if it has one, is killed and restarted under them. Then everything that was begun ends, and the audit holds it against the plans.
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { setTimeout as pause } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { type BatchInfo, type Engine, open } from "../../../src/index.ts";
import { doneKind } from "../../../src/job/batches.ts";
import { Fleet } from "../../../src/torture/fleet.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { atEnd } from "../../../src/torture/run.ts";
import { audit, type Findings, type Found } from "./audit.ts";
import { readHistories } from "./history.ts";
import { KINDS } from "./kinds.ts";
import { FILE, type Planned, planOf } from "./plan.ts";
import { ENOUGH, HEARTBEAT } from "./settings.ts";
import { tablesOf } from "./tables.ts";

export interface BatchesOptions {
  readonly url: string;
  /** At least this many. */
  readonly kills: number;
  /** Kills go on until this many batches were submitted, which are small then; null: until there are enough kills. */
  readonly batches: number | null;
  /** Kills and submissions end after this long, however many there were; null: they do not. A campaign is run in pieces, each with its own verdict. */
  readonly forMs: number | null;
  readonly seed: number;
  readonly workers: number;
  readonly folder: string;
  /** Strikes at the server; null: the store has none. */
  readonly server: { kill(): Promise<void>; stop(): Promise<void>; start(): Promise<void> } | null;
}

export interface BatchesOutcome {
  readonly kills: number;
  readonly acts: Readonly<Record<string, number>>;
  readonly takeovers: number;
  readonly staleWritesRejected: number;
  readonly batches: number;
  readonly rows: number;
  readonly poison: number;
  readonly poisonFound: number;
  readonly poisonDeaths: number;
  readonly findings: Findings;
}

const SUBMITTERS = 2;
const PAUSE_MS = { least: 50, most: 400 };
/** A server strikes once in this many kills. */
const KILLS_PER_SERVER = 40;
/** How long what was begun may take to end after the last kill. */
const ENDED_WITHIN_MS = 120_000;
const STOP_MS = 20_000;
/** Who tried to connect while there was no server may take so long to end. */
const AFTERMATH_MS = 3_000;
const PAGE = 500;
const COUNTED_MS = 2_000;

type Role = "worker" | "submitter";

export async function runBatches(options: BatchesOptions): Promise<BatchesOutcome> {
  const { url, seed, folder } = options;
  const histories = join(folder, "histories");
  const blobs = join(folder, "blobs");
  mkdirSync(histories, { recursive: true });
  process.env["OUTLIVE_BATCH_HISTORIES"] = histories;
  const tables = await tablesOf(url);
  await using engine = await open(url, { jobs: KINDS, heartbeat: HEARTBEAT, logger: false });
  await tables.create(engine);
  const isSmall = options.batches !== null;
  let staleWritesRejected = 0;
  let serverAwayUntil = 0;
  const program = (name: string): string => fileURLToPath(new URL(`./${name}.ts`, import.meta.url));
  const fleet = new Fleet<Role>({
    places: { worker: options.workers, submitter: SUBMITTERS },
    cache: join(folder, "compiled"),
    env: { OUTLIVE_BATCH_HISTORIES: histories },
    programOf: ({ role, number }) =>
      role === "worker"
        ? [program("worker"), [url, blobs]]
        : [
            program("submitter"),
            [
              url,
              folder,
              String(seed),
              String(number),
              hasPoison(number) ? "poison" : "sound",
              isSmall ? "small" : "any",
            ],
          ],
    heard: (_, { event }) => void (event?.name === "write.rejected" && staleWritesRejected++),
    // The poison row; and a process that starts while there is no server ends, and says so.
    mayEnd: ({ role, signal, code }) =>
      (role === "worker" && signal === "SIGKILL") || (code === 1 && performance.now() < serverAwayUntil),
  });
  atEnd(() => fleet.destroy());
  fleet.start();
  const isUnderWay = (): boolean =>
    fleet.missing() === 0 && readHistories(histories).some(({ what }) => what === "ack");
  while (!isUnderWay()) await pause(50);
  const submitted = new Count(histories);
  const acts = await strike(options, fleet, submitted, (until) => (serverAwayUntil = until));
  writeFileSync(join(folder, ENOUGH), "");
  const plans = (): Map<string, Planned> => {
    const asked = readHistories(histories).flatMap((line) => (line.what === "ask" ? [line.key] : []));
    return new Map(asked.map((key) => [key, planOf(seed, key, hasPoison(Number(key.split("-")[0])), isSmall)]));
  };
  await untilEnded(engine, () => {
    const lines = readHistories(histories);
    const acked = new Set(lines.flatMap((line) => (line.what === "ack" ? [line.key] : [])));
    return lines.every((line) => line.what !== "ask" || acked.has(line.key));
  });
  await fleet.stop(["submitter", "worker"], STOP_MS);
  const lines = readHistories(histories);
  const found = await foundIn(engine, blobs);
  const asked = plans();
  const { findings, poisonFound } = audit({
    plans: asked,
    lines,
    found,
    paid: await tables.paid(engine),
    done: await tables.done(engine),
    exactlyOnce: tables.exactlyOnce,
    inconsistencies: [...(await engine.operator.inconsistencies()).map(({ detail }) => detail), ...fleet.unexpected],
  });
  const rows = [...asked.values()].flatMap((plan) => plan.rows);
  return {
    kills: fleet.kills.length,
    acts,
    takeovers: await takeoversOf(engine),
    staleWritesRejected,
    batches: asked.size,
    rows: rows.length,
    poison: rows.filter(({ role }) => role === "poison").length,
    poisonFound,
    poisonDeaths: fleet.exits.filter(({ signal, killedByUs }) => signal === "SIGKILL" && !killedByUs).length,
    findings,
  };
}

/** Of the submitters the first has the row that kills its workers. */
function hasPoison(submitter: number): boolean {
  return submitter === 1;
}

/** Kills until there are enough, and waits between two for most places to be filled: some processes have to get on with it. */
async function strike(
  { kills, batches, forMs, seed, server }: BatchesOptions,
  fleet: Fleet<Role>,
  submitted: Count,
  serverAway: (untilMono: number) => void,
): Promise<Record<string, number>> {
  const chance = new Chance(seed);
  const acts = { worker: 0, submitter: 0, two: 0, all: 0, killServer: 0, restartServer: 0 };
  let nextServer = Math.min(KILLS_PER_SERVER, Math.ceil(kills / 3));
  let told = 0;
  const untilMono = forMs === null ? Infinity : performance.now() + forMs;
  const isEnough = (): boolean =>
    performance.now() > untilMono || (fleet.kills.length >= kills && (batches === null || submitted.now() >= batches));
  while (!isEnough()) {
    await pause(chance.whole(PAUSE_MS.least, PAUSE_MS.most));
    if (fleet.missing() > 2) continue;
    // A campaign is about many batches: its kills are spread over them, so that most come to their end.
    if (batches !== null && fleet.kills.length > (kills * submitted.now()) / batches) continue;
    const living = (role: Role): ReturnType<typeof fleet.places> =>
      fleet.places(role).filter(({ state }) => state === "live");
    const drawn = chance.whole(0, 99);
    const workers = living("worker");
    if (drawn < 55) acts.worker += fleet.kill(some(chance, workers, 1));
    else if (drawn < 80) acts.submitter += fleet.kill(some(chance, living("submitter"), 1));
    else if (drawn < 96) acts.two += fleet.kill(some(chance, workers, 2));
    else acts.all += fleet.kill(fleet.places(), { nobodyLeft: true });
    if (server && fleet.kills.length >= nextServer) {
      nextServer += KILLS_PER_SERVER;
      const isKill = (acts.killServer + acts.restartServer) % 2 === 0;
      acts[isKill ? "killServer" : "restartServer"]++;
      serverAway(Infinity);
      await (isKill ? server.kill() : server.stop());
      await pause(chance.whole(0, 500));
      await server.start();
      serverAway(performance.now() + AFTERMATH_MS);
    }
    if (fleet.kills.length >= told + 50)
      process.stderr.write(`${(told = fleet.kills.length)} of ${kills} kills, ${submitted.now()} batches\n`);
  }
  return acts;
}

/** How many batches were acknowledged, counted now and then. */
class Count {
  readonly #histories: string;
  #count = 0;
  #atMono = Number.NEGATIVE_INFINITY;

  constructor(histories: string) {
    this.#histories = histories;
  }

  now(): number {
    if (performance.now() - this.#atMono > COUNTED_MS) {
      const acked = readHistories(this.#histories).flatMap((line) => (line.what === "ack" ? [line.key] : []));
      this.#count = new Set(acked).size;
      this.#atMono = performance.now();
    }
    return this.#count;
  }
}

function some<T>(chance: Chance, of: readonly T[], count: number): T[] {
  const left = [...of];
  return Array.from(
    { length: Math.min(count, left.length) },
    () => left.splice(chance.whole(0, left.length - 1), 1)[0]!,
  );
}

/** Everything that was asked for is acknowledged, every batch has ended, and so has what follows. */
async function untilEnded(engine: Engine, isAcknowledged: () => boolean): Promise<void> {
  const until = performance.now() + ENDED_WITHIN_MS;
  while (performance.now() < until) {
    await pause(200);
    if (!isAcknowledged()) continue;
    const left = (await engine.counts()).some(
      ({ ready, delayed, held, running }) => ready + delayed + held + running > 0,
    );
    if (left) continue;
    const states = ["open", "sealed", "aborting"] as const;
    if ((await Promise.all(states.map((state) => engine.batches({ state })))).flat().length === 0) return;
  }
}

async function foundIn(engine: Engine, blobs: string): Promise<Found[]> {
  const found: Found[] = [];
  const following = await doneJobs(engine);
  for await (const batch of allBatches(engine)) {
    const { id, key, state, rows, outputs } = batch;
    const failed: Found["failed"][number][] = [];
    for await (const row of engine.batchRows(id, { failed: true })) failed.push({ line: row.line, state: row.state });
    const blob = outputs[FILE]?.blob;
    found.push({
      id,
      key,
      state,
      rows,
      failed,
      output: blob === undefined ? null : readFileSync(join(blobs, blob), "utf8"),
      doneJobs: following.get(id) ?? 0,
    });
  }
  return found;
}

async function* allBatches(engine: Engine): AsyncGenerator<BatchInfo> {
  let after: string | undefined;
  for (;;) {
    const page = await engine.batches({ limit: PAGE, ...(after !== undefined && { after }) });
    yield* page;
    if (page.length < PAGE) return;
    after = page.at(-1)!.id;
  }
}

/** Every job that says of itself that it follows the end of a batch, by the batch. */
async function doneJobs(engine: Engine): Promise<Map<string, number>> {
  const jobs = new Map<string, number>();
  for (const { name } of KINDS) {
    let after: string | undefined;
    do {
      const page = await engine.list({ kind: doneKind(name), limit: PAGE, ...(after !== undefined && { after }) });
      for (const { id } of page.jobs) {
        const of = ((await engine.get(id))!.input as { readonly batch: string }).batch;
        jobs.set(of, (jobs.get(of) ?? 0) + 1);
      }
      after = page.next ?? undefined;
    } while (after !== undefined);
  }
  return jobs;
}

async function takeoversOf(engine: Engine): Promise<number> {
  let sum = 0;
  let after: string | undefined;
  for (;;) {
    const page = await engine.incidents({ limit: PAGE, ...(after !== undefined && { after }) });
    for (const { jobCount } of page) sum += jobCount;
    if (page.length < PAGE) return sum;
    after = page.at(-1)!.id;
  }
}
