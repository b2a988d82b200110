// Promises about waiting jobs. None sleeps on although what it waits for has come ("sleeping parent", "sleeping listener", "overdue sleep"), and
// none is woken before. Each signal that was kept is there once, and is read once, by a wait that keeps it ("lost signal", "signal read twice").
// What a parent sees of other jobs is how they ended.
import type { JobOutcome, Wait } from "../../../src/job/waits.ts";
import { settlementOf } from "./authority-law.ts";
import { attemptOf, isTerminal, type Model, type Moment, OUTCOME, STATE, STATE_NAMES, stepsOf } from "./model.ts";
import { demand } from "./violation.ts";
import type { JobRow, SignalRow, StepRow } from "./watch.ts";
import type { Answer } from "./witness.ts";

/** In the calm a job whose wait has ended is made ready within this time: workers poll every 3 s, and one whose loop is blocked is killed before. */
const WOKEN_WITHIN_MS = 16_000;
/** How often that is checked. */
const CHECK_EVERY_MS = 250;
/** The lane of jobs that are not due. */
const DELAYED = 0;
/** From here on `runAt` does not name a time: the job waits for something else. */
const NO_TIME = 253_402_300_799_998;

interface KnownWait extends Wait {
  /** By the store's clock. */
  readonly dueAt: number;
}

export class WaitingLaw {
  readonly #model: Model;
  /** The waits that began, by the attempt that ended with them. */
  readonly #waits = new Map<string, KnownWait>();
  /** The latest wait at each step of each job. */
  readonly #atSteps = new Map<string, KnownWait>();
  readonly #signals = new Map<number, SignalRow>();
  /** Every way in which a job was ever seen to end, by its id. */
  readonly #ends = new Map<string, Set<string>>();
  /** Since when the waits of jobs have ended that are still asleep. */
  readonly #asleepSince = new Map<number, number>();
  #marked: SignalRow[] = [];
  #latest = 0;
  #checkedAt = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  /** After every event. `calmAt`: since when nothing goes wrong any more; null: it may. */
  onTime(now: number, wall: number, calmAt: number | null): void {
    this.#latest = Math.max(this.#latest, Math.floor(wall));
    if (calmAt === null || now - this.#checkedAt < CHECK_EVERY_MS) return;
    this.#checkedAt = now;
    for (const job of this.#model.jobs.values()) this.#awake(job, now, wall);
  }

  /** Only in the calm. */
  #awake(job: JobRow, now: number, wall: number): void {
    const wait = isAsleep(job) ? this.#waits.get(attemptOf(job)) : undefined;
    if (wait === undefined || !this.#hasEnded(job, wait, Math.floor(wall)))
      return void this.#asleepSince.delete(job.seq);
    const since = this.#asleepSince.get(job.seq) ?? now;
    this.#asleepSince.set(job.seq, since);
    demand(
      now - since < WOKEN_WITHIN_MS,
      () => `${sortOf(wait)}: ${job.id} still waits at ${wait.step}, ${Math.round(now - since)} ms after that ended`,
    );
  }

  /** Before the model learns the change. */
  onChange(was: JobRow | null, is: JobRow, moment: Moment): void {
    if (isTerminal(is.state) && was?.state !== is.state) this.#ended(is);
    if (was?.state === STATE.running && is.state === STATE.queued && is.outcome === OUTCOME.waiting)
      this.#began(was, moment);
    if (was?.state === STATE.queued && is.state === STATE.queued && was.lane === DELAYED && is.lane !== DELAYED)
      this.#madeReady(was, moment);
  }

  #ended({ id, state, result }: JobRow): void {
    const ends = this.#ends.get(id) ?? new Set();
    this.#ends.set(id, ends.add(endOf(STATE_NAMES[state]!, result)));
  }

  #began(was: JobRow, { answers, wall }: Moment): void {
    const wait = answers.map((answer) => settlementOf(answer, was)?.change.wait).find((one) => one !== undefined);
    demand(wait !== undefined, () => `job ${was.id} waits, and its attempt ${was.fence} asked for no wait`);
    const known = { ...wait, dueAt: wait.forMs === null ? Number.POSITIVE_INFINITY : Math.floor(wall) + wait.forMs };
    const before = this.#atSteps.get(`${was.id} ${wait.step}`);
    demand(
      known.dueAt < Number.POSITIVE_INFINITY || before === undefined || before.dueAt === known.dueAt,
      () => `overdue sleep: ${was.id} waits at ${wait.step} again, and not until the time that it had`,
    );
    this.#waits.set(attemptOf(was), known);
    this.#atSteps.set(`${was.id} ${wait.step}`, known);
  }

  #madeReady(was: JobRow, { wall }: Moment): void {
    const at = Math.floor(wall);
    if (was.outcome !== OUTCOME.waiting || !isAsleep(was))
      return demand(
        was.runAt === null || was.runAt <= at || was.runAt > NO_TIME,
        () => `woken early: ${was.id} was made ready ${was.runAt! - at} ms before its time, and it does not wait`,
      );
    const wait = this.#waits.get(attemptOf(was));
    demand(
      wait === undefined || this.#hasEnded(was, wait, at),
      () => `woken early: ${was.id} waits at ${wait!.step} and was made ready although that has not ended`,
    );
  }

  #hasEnded(job: JobRow, { until, dueAt }: KnownWait, wall: number): boolean {
    if (wall >= dueAt) return true;
    if (until === null) return false;
    if ("signal" in until) return this.#unread(job.seq, until.signal).length > 0;
    return until.jobs.every((id) => {
      const awaited = this.#model.jobsById.get(id);
      return awaited === undefined || isTerminal(awaited.state);
    });
  }

  #unread(job: number, name: string): SignalRow[] {
    return [...this.#signals.values()].filter((one) => one.job === job && one.name === name && one.readAt === null);
  }

  onSignal(was: SignalRow | null, is: SignalRow | null): void {
    demand(is !== null, () => `lost signal: ${was!.id} was deleted`);
    if (was === null)
      for (const one of this.#signals.values())
        demand(one.job !== is.job || one.id !== is.id, () => `signal read twice: ${is.id} was kept twice`);
    else if (was.readAt === null && is.readAt !== null) {
      const [oldest] = this.#unread(is.job, is.name).toSorted((a, b) => a.ord - b.ord);
      demand(oldest?.ord === is.ord, () => `signal ${is.id} was read before ${oldest?.id}, which came first`);
      this.#marked.push(is);
    } else demand(false, () => `signal read twice: ${is.id} was changed after it was kept`);
    this.#signals.set(is.ord, is);
  }

  /** After the model has learnt the moment. */
  onMoment(moment: Moment): void {
    const marked = this.#marked;
    this.#marked = [];
    for (const { was, is } of stepsOf(moment)) if (was === null && is !== null) this.#kept(is, marked);
    for (const { id } of marked) demand(false, () => `lost signal: ${id} was marked as read, and no wait keeps it`);
    for (const answer of moment.answers) if (answer.of === "signal") this.#answered(answer);
  }

  /** The outcome of a wait was kept. `marked`: the signals that were read in this moment and that no step has kept yet. */
  #kept(step: StepRow, marked: SignalRow[]): void {
    const id = this.#model.jobs.get(step.job)?.id ?? String(step.job);
    const known = this.#atSteps.get(`${id} ${step.name}`);
    const inTime = (): boolean => known !== undefined && known.dueAt <= this.#latest;
    if (step.name.startsWith("run.sleep"))
      demand(inTime(), () => `woken early: ${id} went on after ${step.name} before its time`);
    if (step.name.startsWith("run.wait")) this.#saw(id, step, inTime);
    if (!step.name.startsWith("run.signal")) return;
    const name = /\((.*)\)#\d+$/.exec(step.name)![1]!;
    if (step.result === null) {
      demand(inTime(), () => `woken early: ${id} gave up ${step.name} before its time`);
      const unread = this.#unread(step.job, name);
      return demand(
        unread.length === 0,
        () => `lost signal: ${id} gave up ${step.name}, and ${unread[0]!.id} was there`,
      );
    }
    const read = marked.findIndex((one) => one.job === step.job && one.name === name && one.payload === step.result);
    demand(
      read >= 0,
      () => `signal read twice: ${id} keeps ${step.result} at ${step.name}, and no signal was read for it`,
    );
    marked.splice(read, 1);
  }

  /** What a job saw of the others that it waited for. */
  #saw(waiter: string, step: StepRow, inTime: () => boolean): void {
    for (const { id, state, result } of JSON.parse(step.result!) as readonly JobOutcome[]) {
      const isOpen = state === "queued" || state === "running";
      demand(
        isOpen ? inTime() : (this.#ends.get(id)?.has(endOf(state, result)) ?? false),
        () =>
          `${waiter} saw ${id} as ${state} with the result ${result} at ${step.name}, which it ${isOpen ? "waits for" : "never was"}`,
      );
    }
  }

  #answered({ signal, answer }: Answer & { of: "signal" }): void {
    const job = this.#model.jobsById.get(signal.job);
    const isThere = [...this.#signals.values()].some((one) => one.job === job?.seq && one.id === signal.id);
    const is = (): string => `signal ${signal.id} was answered ${answer.is}`;
    if (answer.is === "kept" || answer.is === "repeated")
      demand(isThere, () => `lost signal: ${is()}, and is not there`);
    if (answer.is === "missing") demand(job === undefined, () => `${is()}, and its job is there`);
    if (answer.is === "ended") demand(job !== undefined && isTerminal(job.state), () => `${is()}, and its job goes on`);
  }

  /** The rows are older ones. Attempts keep their names, and with them their waits. */
  wentBack(signals: readonly SignalRow[]): void {
    this.#signals.clear();
    this.#asleepSince.clear();
    this.#marked = [];
    for (const one of signals) this.#signals.set(one.ord, one);
  }
}

/** Queued until its wait ends, and not made ready yet. */
function isAsleep({ state, lane, outcome }: JobRow): boolean {
  return state === STATE.queued && lane === DELAYED && outcome === OUTCOME.waiting;
}

function sortOf({ until }: Wait): string {
  if (until === null) return "overdue sleep";
  return "signal" in until ? "sleeping listener" : "sleeping parent";
}

function endOf(state: string, result: string | null): string {
  return `${state} ${result}`;
}
