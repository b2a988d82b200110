// Processes that send requests are killed while hundreds are in flight. At the end the receiver's record, the rows of requests and the rows of callbacks must agree.
import { setTimeout as pause } from "node:timers/promises";
import { type Engine, type JobInfo, open, type WorkerRow } from "../../../src/index.ts";
import { Chance } from "../../../src/torture/killer.ts";
import { Workers } from "../features/workers.ts";
import { allIncidents, type Percentiles, percentiles } from "../processes/timing.ts";
import { type Arrival, RecordingReceiver } from "./receiver.ts";

export interface RequestsPlan {
  readonly url: string;
  readonly folder: string;
  readonly kills: number;
  /** For how long processes are killed, in ms; null: until all kills are done, however long they take. */
  readonly forMs: number | null;
  readonly seed: number;
  readonly workers: number;
  /** Of the kind that is always sent again, in each process; of the other kinds half as many each. */
  readonly inFlight: number;
  readonly plant: boolean;
}

export interface RequestsFindings {
  /** Not ended, or not there. */
  readonly lost: string[];
  readonly callbacksMissing: string[];
  readonly callbacksTwice: string[];
  /** Under "fail", or under "ask" without a decision to resend. */
  readonly sentTwice: string[];
  /** A later one of a queue arrived before an earlier one had ended. */
  readonly inversions: string[];
  /** No request of this rig kills its process. */
  readonly quarantined: string[];
  readonly others: string[];
}

export interface RequestsOutcome {
  readonly findings: RequestsFindings;
  readonly kills: number;
  readonly enqueued: number;
  readonly maxInFlight: number;
  readonly cuts: number;
  readonly takeovers: number;
  /** From each kill to the proof of it, and to the last of its requests being in flight again. */
  readonly detectMs: Percentiles;
  readonly resumeMs: Percentiles;
  readonly staleWritesRejected: number;
  /** What the incidents say, by decision. */
  readonly decisions: Readonly<Record<string, number>>;
}

const NAMES = ["again", "once", "asking", "ordered"] as const;
type Name = (typeof NAMES)[number];
const QUEUES = 20;
const KILL_EVERY_MS = 350;
/** How long the receiver holds a request, at most. At a rate of some hundred a second, 2,000 are in flight only if each takes seconds. */
const holdMs = (inFlight: number): number => Math.max(600, inFlight * 4);
/** How long a kill waits for a process that is full. */
const BUSY_WITHIN_MS = 5_000;
const ENDED_WITHIN_MS = 120_000;

export async function runRequests(plan: RequestsPlan): Promise<RequestsOutcome> {
  const { url, folder, kills, forMs, seed, workers: count, inFlight } = plan;
  const chance = new Chance(seed);
  const receiver = await RecordingReceiver.start(new Chance(seed + 1), holdMs(inFlight));
  process.env["OUTLIVE_REQUESTS_RECEIVER"] = receiver.url;
  process.env["OUTLIVE_REQUESTS_IN_FLIGHT"] = String(inFlight);
  if (plan.plant) process.env["OUTLIVE_REQUESTS_PLANT"] = "resend";
  const { KINDS, ...kinds } = await import("./kinds.ts");
  const engine = await open(url, { jobs: KINDS, logger: false });
  const workers = new Workers({ url, folder, count, kinds: new URL("./kinds.ts", import.meta.url) });
  const asked = new Map<Name, number>(NAMES.map((name) => [name, 0]));
  const more = async (name: Name, most: number): Promise<void> => {
    const from = asked.get(name)!;
    const inputs = Array.from({ length: most }, (_, i) => ({
      n: from + i,
      ...(name === "ordered" && { queue: (from + i) % QUEUES }),
    }));
    asked.set(name, from + most);
    await engine.enqueueMany(kinds[name] as never, inputs as never[], {
      each: (input) => ({ id: `${name}-${(input as { n: number }).n}` }),
    });
  };
  try {
    for (const name of NAMES) await more(name, name === "ordered" ? QUEUES * 5 : inFlight * 2);
    await workers.start();
    const killedAt = new Map<string, number>();
    const untilMono = performance.now() + (forMs ?? Number.POSITIVE_INFINITY);
    while (killedAt.size < kills && performance.now() < untilMono) {
      await topUp(engine, more, inFlight);
      const victim = await untilBusy(engine, receiver, inFlight, chance);
      const at = Date.now();
      if (!killedAt.has(victim.id) && workers.kill(victim.pid)) killedAt.set(victim.id, at);
    }
    await untilEnded(engine);
    await workers.stop();
    const findings = await audit(engine, receiver, asked);
    return {
      findings,
      kills: killedAt.size,
      staleWritesRejected: workers.rejected,
      enqueued: [...asked.values()].reduce((sum, one) => sum + one, 0),
      maxInFlight: receiver.maxInFlight,
      cuts: receiver.cuts,
      ...(await recoveries(engine, killedAt)),
    };
  } finally {
    workers.destroy();
    await engine.close();
    receiver.close();
  }
}

/**
 * Resolves with a worker that holds as many requests as half of its room, while as many are open at the receiver; at the latest after a while with any that
 * holds some.
 */
async function untilBusy(
  engine: Engine,
  receiver: RecordingReceiver,
  inFlight: number,
  chance: Chance,
): Promise<WorkerRow> {
  const began = performance.now();
  const busyWithinMs = Math.max(BUSY_WITHIN_MS, 2 * holdMs(inFlight));
  for (;;) {
    await pause(KILL_EVERY_MS / 4);
    const held = (await engine.workers()).filter(({ state, heldCount }) => state === "live" && heldCount > 0);
    const busy = receiver.inFlight < inFlight ? [] : held.filter(({ heldCount }) => heldCount >= inFlight);
    const waited = performance.now() - began;
    const victim = waited < KILL_EVERY_MS ? undefined : chance.pick(waited < busyWithinMs ? busy : held);
    if (victim) return victim;
    if (waited > ENDED_WITHIN_MS) throw new Error("no worker takes requests any more");
  }
}

/** Keeps enough waiting that every process is full: what the dead held comes on top. */
async function topUp(engine: Engine, more: (name: Name, most: number) => Promise<void>, wanted: number): Promise<void> {
  const counts = new Map((await engine.counts()).map((one) => [one.kind, one]));
  for (const name of NAMES) {
    const { ready = 0, held = 0 } = counts.get(name) ?? {};
    if (name === "ordered" ? held < QUEUES * 2 : ready < wanted)
      await more(name, name === "ordered" ? QUEUES * 2 : wanted);
  }
}

/** Waits for as long as work is being done: on a busy machine what is left takes its time, and what is lost never ends. */
async function untilEnded(engine: Engine): Promise<void> {
  let least = Number.POSITIVE_INFINITY;
  let progressMono = performance.now();
  for (;;) {
    const counts = await engine.counts();
    const left = counts.reduce((sum, one) => sum + one.ready + one.held + one.running + one.delayed, 0);
    if (left < least) [least, progressMono] = [left, performance.now()];
    if (left === 0 || performance.now() - progressMono > ENDED_WITHIN_MS) return;
    await pause(100);
  }
}

async function all(engine: Engine, kind: string): Promise<JobInfo[]> {
  const jobs: JobInfo[] = [];
  for (let after: string | undefined; ;) {
    const page = await engine.list({ kind, limit: 1_000, ...(after !== undefined && { after }) });
    jobs.push(...page.jobs);
    if (page.next === null) return jobs;
    after = page.next;
  }
}

async function audit(
  engine: Engine,
  receiver: RecordingReceiver,
  asked: ReadonlyMap<Name, number>,
): Promise<RequestsFindings> {
  const findings: RequestsFindings = {
    lost: [],
    callbacksMissing: [],
    callbacksTwice: [],
    sentTwice: [],
    inversions: [],
    quarantined: [],
    others: [],
  };
  for (const name of NAMES) {
    const requests = new Map((await all(engine, name)).map((job) => [job.id, job]));
    const callbacks = new Map<string, JobInfo[]>();
    for (const which of ["response", "error"])
      for (const job of await all(engine, `${name}.${which}`)) {
        const of = job.id.slice(0, job.id.indexOf("."));
        callbacks.set(of, [...(callbacks.get(of) ?? []), job]);
      }
    const arrivals = Map.groupBy(
      receiver.arrivals.filter(({ kind }) => kind === name),
      ({ n }) => n,
    );
    for (let n = 0; n < asked.get(name)!; n++) {
      const id = `${name}-${n}`;
      const job = requests.get(id);
      if (job?.state === "quarantined") {
        findings.quarantined.push(id);
        continue;
      }
      if (job?.state !== "succeeded" && job?.state !== "dead") {
        findings.lost.push(`${id} is ${job?.state ?? "missing"}`);
        continue;
      }
      const of = callbacks.get(id) ?? [];
      if (of.length === 0) findings.callbacksMissing.push(`${id} is ${job.state}`);
      if (of.length > 1) findings.callbacksTwice.push(`${id}: ${of.map((one) => one.id).join(", ")}`);
      for (const one of of) if (one.state !== "succeeded") findings.others.push(`${one.id} is ${one.state}`);
      const acted = (arrivals.get(n) ?? []).filter(({ isRejected }) => !isRejected).length;
      if (job.state === "succeeded" && acted === 0) findings.others.push(`${id} succeeded and never arrived`);
      const allowed =
        name === "once" ? 1 : name === "asking" ? 1 + (receiver.allowed.get(n) ?? 0) : Number.POSITIVE_INFINITY;
      if (acted > allowed) findings.sentTwice.push(`${id} was acted on ${acted} times, and ${allowed} are allowed`);
      if ((name === "again" || name === "ordered") && job.state === "dead")
        findings.lost.push(`${id} is dead: ${job.error?.message}`);
    }
  }
  findings.inversions.push(...inversions(receiver.arrivals));
  return findings;
}

/** Whether a request of a queue arrived after a later one of it, or before the one in front of it had been answered. */
function inversions(arrivals: readonly Arrival[]): string[] {
  const latest = new Map<number, number>();
  return arrivals.flatMap(({ kind, queue, n, after }) => {
    if (kind !== "ordered") return [];
    const before = latest.get(queue) ?? -1;
    latest.set(queue, Math.max(before, n));
    if (n < before) return [`${n} of queue ${queue} arrived after ${before}`];
    return n - QUEUES > after ? [`${n} of queue ${queue} arrived when only ${after} had been answered`] : [];
  });
}

type Recoveries = Pick<RequestsOutcome, "takeovers" | "decisions" | "detectMs" | "resumeMs">;

/** `killedAt`: by worker. */
async function recoveries(engine: Engine, killedAt: ReadonlyMap<string, number>): Promise<Recoveries> {
  const decisions: Record<string, number> = {};
  const detected: number[] = [];
  const resumed: number[] = [];
  const incidents = await allIncidents(engine);
  for (const { id, worker } of incidents) {
    const report = await engine.report(id);
    if (!report) continue;
    for (const { decision } of report.recoveredJobs) decisions[decision] = (decisions[decision] ?? 0) + 1;
    const at = killedAt.get(worker);
    const { detectedAt, runningAgainAt } = report.deadWorkers[0]!;
    if (at === undefined) continue;
    detected.push(detectedAt - at);
    if (runningAgainAt !== null) resumed.push(runningAgainAt - at);
  }
  const takeovers = incidents.length;
  return { takeovers, decisions, detectMs: percentiles(detected), resumeMs: percentiles(resumed) };
}
