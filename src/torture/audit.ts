// The audit: compares what was promised with what is in the store, through an engine's public interface. Each check is
// one sentence about the data, plus one sentence for each violation. From the run it needs only the jobs whose enqueue
// resolved.
import { readdirSync, readFileSync } from "node:fs";
import type { Engine, IncidentSummary, JobDetails, JobInfo, JobState, Report, WorkerRow } from "../index.ts";
import type { Kill } from "./fleet.ts";
import { type Account, FEES, type Movement, OPENING_BALANCE, poison, type Tables, type Transfer } from "./tables.ts";

interface Verdict {
  readonly title: string;
  /** One sentence per violation; empty: the promise held. */
  readonly violations: readonly string[];
}

export interface Audit {
  readonly enqueued: number;
  readonly succeeded: number;
  /** Promised and missing, or present and not ended. */
  readonly lost: number;
  /** Transfers with more than one row in the ledger. */
  readonly committedTwice: number;
  readonly quarantined: number;
  /** Quarantined jobs that never killed a worker. */
  readonly quarantinedInnocents: number;
  /** Poison jobs that were enqueued. */
  readonly poison: number;
  readonly ledgerRows: number;
  readonly balance: number;
  /** Writes of attempts that no longer owned their job, each refused and recorded. */
  readonly staleWritesRejected: number;
  /** Workers that were considered dead because they were silent, and then wrote. */
  readonly zombies: number;
  /** Steps that an attempt finished before it died and that the successful attempt did not run again. */
  readonly keptSteps: number;
  /** When the last job ended, in ms. */
  readonly lastEndAt: number;
  readonly verdicts: readonly Verdict[];
}

/** Everything that the checks read. */
interface AuditInput {
  /** What was enqueued, by id; null: a poison job. */
  readonly promised: ReadonlyMap<string, Transfer | null>;
  readonly jobs: ReadonlyMap<string, JobInfo>;
  /** Jobs with any history other than a single successful attempt. */
  readonly details: readonly JobDetails[];
  readonly ledger: ReadonlyMap<string, readonly Movement[]>;
  readonly accounts: readonly Account[];
  readonly incidents: readonly IncidentSummary[];
  readonly workers: readonly WorkerRow[];
}

const CHECKS: Readonly<Record<string, (found: AuditInput) => string[]>> = {
  "every job whose enqueue resolved is there": ({ promised, jobs }) =>
    missing(promised, jobs).map((id) => `job ${id} was enqueued and is not in the store`),
  "every job has ended, and nothing is running": ({ jobs }) =>
    unfinished(jobs).map(
      ({ id, state, worker }) => `job ${id} has not ended: it is ${state}, its last worker was ${worker ?? "none"}`,
    ),
  "no job left an end that it had reached": ({ details }) =>
    details.flatMap(({ id, history }) =>
      history
        .filter(({ from, to }) => isEnd(from) && to !== from)
        .map(({ from, actor, event }) => `job ${id} was ${from} already when ${actor} wrote "${event}"`),
    ),
  // A success leaves no history entry, every other end leaves one.
  "each job ended once": ({ details }) =>
    details.flatMap(({ id, state, history }) => {
      const ends = history.filter(({ from, to }) => !isEnd(from) && isEnd(to)).length;
      return isEnd(state) && ends !== (state === "succeeded" ? 0 : 1)
        ? [`job ${id} is ${state}, and its history has ${ends} ends other than a success`]
        : [];
    }),
  "no transfer is in the ledger twice": ({ ledger }) =>
    twice(ledger).map(
      ([id, rows]) =>
        `job ${id} is in the ledger ${rows.length} times (attempts ${rows.map(({ attempt }) => attempt).join(",")})`,
    ),
  "every transfer that succeeded is in the ledger": ({ jobs, ledger }) =>
    [...jobs.values()]
      .filter(({ id, kind, state }) => state === "succeeded" && kind !== poison.name && !ledger.has(id))
      .map(({ id }) => `job ${id} succeeded, but its row is not in the ledger`),
  "nothing else is in the ledger": ({ jobs, ledger }) =>
    [...ledger.keys()]
      .filter((id) => jobs.get(id)?.state !== "succeeded")
      .map((id) => `job ${id} is in the ledger, but it is ${jobs.get(id)?.state ?? "not a job"}`),
  "each row of the ledger is what was ordered": ({ promised, ledger }) =>
    [...ledger].flatMap(([id, rows]) => {
      const order = promised.get(id);
      const isOther = ({ from, to, amount }: Movement): boolean =>
        order?.from !== from || order.to !== to || order.amount !== amount;
      return order && rows.some(isOther) ? [`job ${id} moved something else than was ordered`] : [];
    }),
  "the sum of the accounts is what it was": ({ accounts }) => {
    const [now, was] = [sum(accounts.map(({ balance }) => balance)), accounts.length * OPENING_BALANCE];
    return now === was ? [] : [`the accounts hold ${money(now)}; they began with ${money(was)}`];
  },
  "each account holds what the ledger says": ({ accounts, ledger }) => {
    const due = new Map(accounts.map(({ id }) => [id, OPENING_BALANCE]));
    const add = (id: number, change: number): void => void due.set(id, (due.get(id) ?? 0) + change);
    for (const { from, to, amount, fee } of [...ledger.values()].flat()) {
      add(from, -(amount + fee));
      add(to, amount);
      add(FEES, fee);
    }
    return accounts
      .filter(({ id, balance }) => balance !== due.get(id))
      .map(({ id, balance }) => `account ${id} holds ${money(balance)}; its ledger makes ${money(due.get(id)!)}`);
  },
  "only the poison job is in quarantine, and no job is dead or cancelled": ({ jobs, details }) =>
    [...jobs.values()]
      .filter(({ kind, state }) =>
        kind === poison.name ? state !== "quarantined" : isEnd(state) && state !== "succeeded",
      )
      .map(({ id, state }) => {
        const history = details.find((job) => job.id === id)?.history;
        const reason = history?.findLast(({ to }) => to === state)?.reason;
        return `job ${id} is ${state}${reason === undefined ? "" : `: ${reason}`}`;
      }),
  "each death has one incident": ({ incidents }) =>
    [...Map.groupBy(incidents, ({ worker }) => worker)]
      .filter(([, of]) => of.length > 1)
      .map(([worker, of]) => `the death of worker ${worker} has ${of.length} incidents`),
  "every worker has left or was recovered": ({ workers }) =>
    workers
      .filter(({ state }) => state === "live" || state === "recovering")
      .map(({ id, state }) => `worker ${id} is still called ${state}, and no process is left`),
};

/** Runs after every process has ended. */
export async function audit(
  engine: Engine,
  tables: Tables,
  promised: ReadonlyMap<string, Transfer | null>,
): Promise<Audit> {
  const jobs = await allJobs(engine);
  const details = await detailsOf(engine, jobs);
  const ledger = Map.groupBy(await tables.ledger(engine), ({ jobId }) => jobId);
  const accounts = await tables.accounts(engine);
  const incidents = await allIncidents(engine);
  const workers = await engine.workers({ which: "all" });
  const found: AuditInput = { promised, jobs, details, ledger, accounts, incidents, workers };
  const inState = (state: JobState): JobInfo[] => [...jobs.values()].filter((job) => job.state === state);
  const refused = details.flatMap(({ history }) => history.filter(({ event }) => event === "write.rejected"));
  const quarantined = inState("quarantined");
  return {
    enqueued: promised.size,
    succeeded: inState("succeeded").length,
    lost: missing(promised, jobs).length + unfinished(jobs).length,
    committedTwice: twice(ledger).length,
    quarantined: quarantined.length,
    quarantinedInnocents: quarantined.filter(({ kind }) => kind !== poison.name).length,
    poison: [...promised.values()].filter((input) => input === null).length,
    ledgerRows: sum([...ledger.values()].map(({ length }) => length)),
    balance: sum(accounts.map(({ balance }) => balance)),
    staleWritesRejected: refused.length,
    zombies: incidents.filter(
      ({ how, worker }) => how === "silent" && refused.some(({ actor }) => actor === `worker/${worker}`),
    ).length,
    keptSteps: sum(
      details
        .filter(({ state }) => state === "succeeded")
        .map(({ attempt, steps }) => steps.filter((step) => step.attempt < attempt).length),
    ),
    lastEndAt: [...jobs.values()].reduce((latest, { finishedAt }) => Math.max(latest, finishedAt ?? 0), 0),
    verdicts: Object.entries(CHECKS).map(([title, check]) => ({ title, violations: check(found) })),
  };
}

export function money(cents: number): string {
  return (cents / 100).toLocaleString("en-US", { minimumFractionDigits: 2 });
}

function isEnd(state: JobState): boolean {
  return state !== "queued" && state !== "running";
}

function missing(promised: AuditInput["promised"], jobs: AuditInput["jobs"]): string[] {
  return [...promised.keys()].filter((id) => !jobs.has(id));
}

function unfinished(jobs: AuditInput["jobs"]): JobInfo[] {
  return [...jobs.values()].filter(({ state }) => !isEnd(state));
}

function twice(ledger: AuditInput["ledger"]): [string, readonly Movement[]][] {
  return [...ledger].filter(([, rows]) => rows.length > 1);
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

async function allJobs(engine: Engine): Promise<Map<string, JobInfo>> {
  const jobs = new Map<string, JobInfo>();
  for (let after: string | undefined; ;) {
    const page = await engine.list({ limit: 1_000, ...(after === undefined ? {} : { after }) });
    for (const job of page.jobs) jobs.set(job.id, job);
    if (page.next === null) return jobs;
    after = page.next;
  }
}

/** How many jobs are read at once. */
const AT_ONCE = 20;

async function detailsOf(engine: Engine, jobs: AuditInput["jobs"]): Promise<JobDetails[]> {
  const eventful = [...jobs.values()].filter(({ attempt, state }) => attempt > 1 || state !== "succeeded");
  const details: JobDetails[] = [];
  for (let from = 0; from < eventful.length; from += AT_ONCE) {
    const read = await Promise.all(eventful.slice(from, from + AT_ONCE).map(({ id }) => engine.get(id)));
    details.push(...read.filter((job) => job !== null));
  }
  return details;
}

/** The latest first. */
async function allIncidents(engine: Engine): Promise<IncidentSummary[]> {
  const all: IncidentSummary[] = [];
  for (let after: string | undefined; ;) {
    const page = await engine.incidents({ limit: 1_000, ...(after === undefined ? {} : { after }) });
    all.push(...page);
    if (page.length < 1_000) return all;
    after = page.at(-1)!.id;
  }
}

// Whether a process that received SIGSTOP has stopped. One of its threads takes the signal, and until that thread gets
// a core the others keep running: maintenance may open a transaction after its process was "frozen".

/** True if none of its threads is running, if that can't be known (no /proc), or if the process is gone. */
export function standsStill(pid: number): boolean {
  try {
    return readdirSync(`/proc/${pid}/task`).every((thread) => {
      const stat = readFileSync(`/proc/${pid}/task/${thread}/stat`, "latin1");
      return "TtZX".includes(stat.slice(stat.lastIndexOf(")") + 2)[0]!);
    });
  } catch {
    return true;
  }
}

// How fast the work of killed workers was running again: for each SIGKILL, the time until the last job that the worker
// held was running again or had ended. The parent records the instant of the kill, the incident the others; both use
// the wall clock of one machine.

export interface Recovery {
  readonly kill: Kill;
  /**
   * Ids. Empty: it was killed before it had registered, or the death is not found yet. A death has exactly one, which
   * the audit checks.
   */
  readonly incidents: readonly string[];
  readonly jobs: number;
  /** From the kill to the proof of the death. */
  readonly detectedMs: number | null;
  /** Null: it held nothing, or some of its jobs are not running again yet. */
  readonly backMs: number | null;
  /** Jobs that were requeued and have not run since. */
  readonly waiting: readonly string[];
}

export interface Percentiles {
  readonly p50: number | null;
  readonly p99: number | null;
  readonly max: number | null;
}

/** A complete incident may still be joined by another one of the same death for this long. */
const SETTLED_MS = 2_000;

export class RecoveryTimes {
  readonly #engine: Engine;
  readonly #done = new Map<Kill, Recovery>();

  constructor(engine: Engine) {
    this.#engine = engine;
  }

  /** The recoveries of every kill so far. Complete ones are not read again. */
  async of(kills: readonly Kill[]): Promise<readonly Recovery[]> {
    if (kills.every((kill) => this.#done.has(kill))) return kills.map((kill) => this.#done.get(kill)!);
    const incidents = await this.#engine.incidents({ limit: 1_000 });
    return Promise.all(kills.map(async (kill) => this.#done.get(kill) ?? this.#read(kill, incidents)));
  }

  async #read(kill: Kill, all: readonly IncidentSummary[]): Promise<Recovery> {
    const incidents = all.filter((incident) => isOf(kill, incident)).map(({ id }) => id);
    const found = await Promise.all(incidents.map((id) => this.#engine.report(id)));
    const reports = found.filter((report): report is Report => report !== null);
    const jobs = reports.flatMap((report) =>
      report.recoveredJobs.map(({ jobId, decision, resumedAt }) => ({
        jobId,
        endAt: decision === "retry" || decision === "requeue" ? resumedAt : report.completedAt,
      })),
    );
    const waiting = jobs.filter(({ endAt }) => endAt === null).map(({ jobId }) => jobId);
    const complete = reports.length > 0 && reports.every(({ completedAt }) => completedAt !== null);
    const detected = reports.map(({ deadWorkers }) => deadWorkers[0]!.detectedAt - kill.at);
    const back = complete && waiting.length === 0;
    const recovery: Recovery = {
      kill,
      incidents,
      jobs: jobs.length,
      detectedMs: detected.length === 0 ? null : Math.min(...detected),
      backMs: back && jobs.length > 0 ? Math.max(...jobs.map(({ endAt }) => endAt!)) - kill.at : null,
      waiting,
    };
    if (back && Date.now() - kill.at > SETTLED_MS) this.#done.set(kill, recovery);
    return recovery;
  }
}

/** By the worker's id, or by its pid if it registered before its parent learned its id. */
function isOf(kill: Kill, { worker, detectedAt }: IncidentSummary): boolean {
  return kill.workerId === null ? detectedAt >= kill.at && worker.includes(`-${kill.pid}-`) : worker === kill.workerId;
}

/** Ignores unknown times. */
export function percentiles(times: readonly (number | null)[]): Percentiles {
  const sorted = times.filter((ms) => ms !== null).toSorted((a, b) => a - b);
  const at = (share: number): number | null => sorted[Math.max(0, Math.ceil(sorted.length * share) - 1)] ?? null;
  return { p50: at(0.5), p99: at(0.99), max: sorted.at(-1) ?? null };
}
