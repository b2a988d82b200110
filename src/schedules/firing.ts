// Fires schedules in a worker's process. Every worker runs it and none leads: it reads what is due, decides (job/schedules.ts), and writes under
// guard. With nothing due it makes one small read when the next schedule is due, and at least once in `pollMs`, which is long while
// another process reads for all (recovery/elected-poll.ts). Until it has seen a schedule, the wake-ups of jobs do not reach it, and the elected process, which reads
// often, may fire the first one. It also keeps the schedules
// that this program declares.
import type { AuditEntry } from "../job/audit.ts";
import { type StoredError, toStoredError, whyStoreReplaced } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { isTerminal } from "../job/job.ts";
import { decideFiring, type FiringDecision, mayDeclare, type ScheduleRow, setRow } from "../job/schedules.ts";
import type { CallOff, Clock } from "../job/time.ts";
import type { Store } from "../stores/port.ts";
import type { DueSchedules, Firing, Schedules } from "../stores/schedules.ts";
import { calendarFor, zoneDataVersion } from "./calendar.ts";
import { occurrenceId, type ScheduleDeclaration, specOf } from "./declaration.ts";

/** Schedules that are read at once, and jobs that one transaction inserts. */
export const MAX_DUE = 1_000;
const MAX_JOBS = 1_000;
/** Schedules that are read at most to find one that this process can fire. */
const MAX_READ = 64_000;
/** How soon the next try follows a failure of the store. */
const AFTER_FAILURE_MS = 1_000;
/** How often it is checked that what this program declares is what is stored, for the time in which two versions run side by side. */
const DECLARE_AGAIN_MS = 60_000;
/** What was reported is remembered up to this much; beyond it, it is reported again. */
const MAX_REPORTED = 10_000;
/** Tries to write a row that others change at the same time. */
const MAX_TRIES = 20;

export interface FiringDeps {
  readonly store: Store;
  readonly clock: Clock;
  readonly events: Emitter;
  /** The schedules of this program, by name. */
  readonly declared: ReadonlyMap<string, ScheduleDeclaration>;
  /** The id of the worker's present life. */
  readonly worker: () => string;
  /** How long it waits at most before it reads what is due: this often, or less often as long as `pollMs` says so. */
  readonly oftenMs: number;
  readonly pollMs: () => number;
  /** The version of the time-zone data. Omitted: that of this process. */
  readonly zoneData?: string;
}

/** The shortest time between two reads of what is due that wake-ups cause. */
const WOKEN_MS = 250;

export class ScheduleFiring {
  readonly #deps: FiringDeps;
  readonly #schedules: Schedules;
  readonly #zoneData: string;
  #timer: CallOff | undefined;
  #unlisten: (() => void) | undefined;
  #pass: Promise<void> | undefined;
  #isWoken = false;
  /** Null until the first pass. */
  #isAnyKnown: boolean | null = null;
  #passedAtMono = Number.NEGATIVE_INFINITY;
  #wakesAtMono = Number.POSITIVE_INFINITY;
  #stopped = false;
  #declaredAtMono = Number.NEGATIVE_INFINITY;
  #declaredAs = "";
  /** What was reported once and is not repeated. */
  readonly #reported = new Set<string>();

  constructor(deps: FiringDeps, schedules: Schedules) {
    this.#deps = deps;
    this.#schedules = schedules;
    this.#zoneData = deps.zoneData ?? zoneDataVersion();
  }

  /** Writes what this program declares, then fires until it is stopped. Rejects if a declaration is not valid. */
  async start(): Promise<void> {
    if (this.#deps.declared.size > 0) await this.declare();
    this.#listen(true);
    this.#sleep(0);
  }

  async stop(): Promise<void> {
    this.#stopped = true;
    this.#timer?.();
    this.#listen(false);
    await this.#pass;
  }

  /** One pass: fires what is due. Returns in how many ms there is more to do; null: nothing is known to come. */
  async fire(): Promise<number | null> {
    const { read, firings } = await this.#due();
    let moved = 0;
    for (const group of inGroups(firings)) {
      const answers = await this.#schedules.fire(group.map(({ firing }) => firing));
      group.forEach(({ firing, decision }, i) => {
        const answer = answers[i]!;
        if (answer.is === "stale") return;
        moved++;
        this.#report(firing, decision, answer.enqueued);
      });
    }
    if (moved > 0) return 0;
    // Others have fired them, or this process can't: they must not be asked for again at once.
    return read.nextInMs === 0 ? WOKEN_MS : read.nextInMs;
  }

  /** What is due and what to do about it. Those that this process can't fire stay due, and may fill a whole page: others are behind them. */
  async #due(): Promise<{ readonly read: DueSchedules; readonly firings: readonly FiringWithDecision[] }> {
    for (let limit = MAX_DUE; ; limit *= 2) {
      const read = await this.#schedules.due(limit);
      if (read.damaged) for (const name of read.damaged) this.#damaged(name);
      const firings = read.due.length === 0 ? [] : await this.#decide(read);
      if (firings.length > 0 || read.due.length < limit || limit >= MAX_READ) return { read, firings };
    }
  }

  async #decide({ now, due }: DueSchedules): Promise<FiringWithDecision[]> {
    const calendar = await calendarFor(due.map(({ row }) => row.timing));
    const previous = due.flatMap(({ row }) => (row.overlap === "skip" && row.lastJob !== null ? [row.lastJob] : []));
    const outcomes = previous.length === 0 ? [] : await this.#deps.store.inspect.outcomes(previous);
    const unfinished = new Set(
      outcomes.filter(({ state }) => state !== "missing" && !isTerminal(state)).map(({ id }) => id),
    );
    const decided: FiringWithDecision[] = [];
    for (const { row, isKindPaused } of due) {
      const facts = {
        now,
        isKindPaused,
        isPreviousUnfinished: row.lastJob !== null && unfinished.has(row.lastJob),
        zoneData: this.#zoneData,
      };
      try {
        if (row.draft === null && !this.#declares(row)) continue;
        const decision = decideFiring(row, facts, calendar.next);
        if (decision === null) continue;
        this.#compareZoneData(row);
        decided.push({ decision, firing: await this.#firing(row, decision) });
      } catch (thrown) {
        // It stays due and is read again with every pass.
        if (this.#isNew(`failed ${row.name} ${row.version}`)) this.#failed(row.name, toStoredError(thrown));
      }
    }
    return decided;
  }

  /** Whether the input function of this program is the one that the row was set with. */
  #declares({ name, digest }: ScheduleRow): boolean {
    return this.#deps.declared.has(name) && this.#digests.get(name) === digest;
  }

  readonly #digests = new Map<string, string>();

  async #firing(row: ScheduleRow, { occurrences, row: moved }: FiringDecision): Promise<Firing> {
    const jobs: Firing["jobs"][number][] = [];
    for (const { at, caughtUp } of occurrences) {
      const draft = row.draft ?? (await this.#deps.declared.get(row.name)!.draft(at));
      jobs.push({ draft: { ...draft, id: occurrenceId(row.name, at) }, at, caughtUp });
    }
    return { row: { ...moved, lastJob: jobs.at(-1)?.draft.id ?? row.lastJob }, jobs };
  }

  #report(
    { row, jobs }: Firing,
    { skipped }: FiringDecision,
    enqueued: readonly { readonly created: boolean }[],
  ): void {
    const { events } = this.#deps;
    const { name: schedule, kind } = row;
    jobs.forEach(({ draft, at, caughtUp }, i) => {
      if (enqueued[i]?.created) events.emit("schedule.fired", { schedule, kind, jobId: draft.id, at, caughtUp });
    });
    for (const { reason, from, to, count } of skipped)
      events.emit("schedule.skipped", { schedule, kind, reason, from, to, count });
  }

  #compareZoneData({ name, zoneData }: ScheduleRow): void {
    if (zoneData === null || zoneData === this.#zoneData || !this.#isNew(`zone ${name} ${zoneData}`)) return;
    this.#deps.events.emit("schedule.zones", { schedule: name, here: this.#zoneData, there: zoneData });
  }

  #damaged(name: string): void {
    if (!this.#isNew(`damaged ${name}`)) return;
    const message = `The stored data of the schedule ${name} is damaged. Remove it and set it again.`;
    this.#deps.events.emit("schedule.failed", { schedule: name, error: { name: "OutliveError", message } });
  }

  /** Whether this is to be reported: it was not before. */
  #isNew(what: string): boolean {
    if (this.#reported.has(what)) return false;
    if (this.#reported.size >= MAX_REPORTED) this.#reported.clear();
    this.#reported.add(what);
    return true;
  }

  #failed(schedule: string, error: StoredError): void {
    this.#deps.events.emit("schedule.failed", { schedule, error });
  }

  // ---- what this program declares

  /** Brings the stored schedules in step with the program's, and notes that this worker declares them. */
  async declare(): Promise<void> {
    const { declared, worker } = this.#deps;
    const now = await this.#schedules.now();
    const specs = await Promise.all([...declared.values()].map((one) => specOf(one, "code", now)));
    for (const { name, digest } of specs) this.#digests.set(name, digest);
    const id = worker();
    if (this.#declaredAs !== id) {
      const zoneData = this.#zoneData;
      await this.#schedules.declare(
        id,
        specs.map(({ name, digest }) => ({ schedule: name, digest, zoneData })),
      );
      this.#declaredAs = id;
    }
    const others = (await this.#schedules.declared()).filter((one) => one.worker !== id);
    for (const { calendar, ...spec } of specs) {
      await changeRow(this.#schedules, spec.name, (row) => {
        if (row === null) return setRow(null, spec, now, calendar.next);
        if (row.origin === "api") return this.#set(row);
        const elsewhere = others.some(({ schedule, digest }) => schedule === spec.name && digest === row.digest);
        if (mayDeclare(row, spec.digest, elsewhere)) return setRow(row, spec, now, calendar.next);
        this.#outdated(row);
        return null;
      });
    }
    this.#declaredAtMono = this.#deps.clock.mono();
  }

  /** A worker that declares no schedule fires those of others: with which time-zone data is for `outlive status`. */
  async #noteZoneData(): Promise<void> {
    const id = this.#deps.worker();
    if (this.#deps.declared.size > 0 || this.#declaredAs === id) return;
    await this.#schedules.noteZoneData(id, this.#zoneData);
    this.#declaredAs = id;
  }

  /** What was set at run time belongs to those who set it. */
  #set({ name }: ScheduleRow): null {
    if (!this.#isNew(`set ${name}`)) return null;
    const message = `The schedule ${name} was set at run time, so the declaration in this program is not used. Remove it, or rename one of the two.`;
    this.#failed(name, { name: "OutliveError", message });
    return null;
  }

  #outdated({ name, digest }: ScheduleRow): void {
    if (!this.#isNew(`outdated ${name} ${digest}`)) return;
    this.#deps.events.emit("schedule.outdated", { schedule: name });
  }

  // ---- when

  /** Whether wake-ups make it read what is due. */
  #listen(on: boolean): void {
    if (on === (this.#unlisten !== undefined)) return;
    this.#unlisten?.();
    this.#unlisten = on ? this.#deps.store.onWakeup((what) => what === "wake" && this.#woken()) : undefined;
  }

  /** A schedule may have changed. Every enqueue wakes it, too, so what is due is read for that at most four times a second. */
  #woken(): void {
    this.#isWoken = true;
    if (this.#pass !== undefined) return;
    const mono = this.#deps.clock.mono();
    const inMs = Math.max(0, this.#passedAtMono + WOKEN_MS - mono);
    if (mono + inMs < this.#wakesAtMono) this.#sleep(inMs);
  }

  #sleep(ms: number): void {
    if (this.#stopped) return;
    this.#timer?.();
    const { clock } = this.#deps;
    this.#wakesAtMono = clock.mono() + Math.max(1, ms);
    this.#sleepOn();
  }

  /** In pieces: how long it may wait at most can change meanwhile. */
  #sleepOn(): void {
    const { clock, oftenMs, pollMs } = this.#deps;
    this.#timer = clock.after(Math.max(1, Math.min(this.#wakesAtMono - clock.mono(), oftenMs)), () => {
      this.#timer = undefined;
      const mono = clock.mono();
      if (mono < this.#wakesAtMono && mono - this.#passedAtMono < pollMs()) return this.#sleepOn();
      this.#pass ??= this.#once().finally(() => {
        this.#pass = undefined;
        this.#passedAtMono = clock.mono();
        if (this.#isWoken) this.#woken();
      });
    });
  }

  async #once(): Promise<void> {
    this.#isWoken = false;
    const { clock, declared, events } = this.#deps;
    let inMs: number | null = null;
    try {
      if (declared.size > 0 && clock.mono() - this.#declaredAtMono >= DECLARE_AGAIN_MS) await this.declare();
      inMs = await this.fire();
      // One that is paused counts, too: when it is resumed, a wake-up says so.
      this.#isAnyKnown ??= declared.size > 0 || (await this.#schedules.list(1, null)).length > 0;
      this.#isAnyKnown ||= inMs !== null;
      if (this.#isAnyKnown) await this.#noteZoneData();
      // Where no wake-up is lost, no process reads often.
      if (!this.#stopped) this.#listen(this.#isAnyKnown || this.#deps.store.wakesSurely === true);
    } catch (thrown) {
      // The worker says so, and stops.
      if (whyStoreReplaced(thrown) !== null) this.#stopped = true;
      if (this.#stopped) return;
      inMs = AFTER_FAILURE_MS;
      events.emit("store.failed", { doing: "firing schedules", error: toStoredError(thrown), retryInMs: inMs });
    }
    const pollMs = this.#deps.pollMs();
    this.#sleep(Math.min(pollMs, inMs ?? pollMs));
  }
}

interface FiringWithDecision {
  readonly firing: Firing;
  readonly decision: FiringDecision;
}

/** As many as one transaction takes. */
function inGroups(all: readonly FiringWithDecision[]): FiringWithDecision[][] {
  const groups: FiringWithDecision[][] = [];
  let jobs = Number.POSITIVE_INFINITY;
  for (const one of all) {
    const more = one.firing.jobs.length;
    if (jobs + more > MAX_JOBS) {
      groups.push([]);
      jobs = 0;
    }
    groups.at(-1)!.push(one);
    jobs += more;
  }
  return groups;
}

/** Reads, decides and writes a row until no other process came between. Returns the row as it is after it; null: there is none. */
export async function changeRow(
  schedules: Schedules,
  name: string,
  change: (row: ScheduleRow | null) => ScheduleRow | null,
  entry?: AuditEntry,
): Promise<ScheduleRow | null> {
  for (let tries = 1; ; tries++) {
    const row = await schedules.get(name);
    const changed = change(row);
    if (changed === null) return row;
    if (await schedules.write(changed, entry)) return { ...changed, version: changed.version + 1 };
    if (tries === MAX_TRIES) throw new Error(`The schedule ${name} changed ${MAX_TRIES} times while it was written.`);
  }
}
