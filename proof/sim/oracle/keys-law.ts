// Promises about jobs with keys. No key ever has more jobs admitted or running than its limit ("over limit"), starts more than its rate ("too
// many starts"), starts anything while it is held off or paused, or breaks a strict order; none keeps a job waiting that it has room for ("stuck key");
// and the keys of a fair kind take turns (turns-law.ts).
import { FAIR, jobKey } from "../../../src/job/limits.ts";
import { limitFacts } from "../workloads/index.ts";
import { WAITS_FOR_WORKER_MS } from "../../../src/stores/sqlite/admission.ts";
import type { RunOf } from "../workloads/workload.ts";
import { attemptOf, isTerminal, type Model, type Moment, STATE } from "./model.ts";
import { type FairJob, TurnsLaw } from "./turns-law.ts";
import { demand } from "./violation.ts";
import type { Answer } from "./witness.ts";
import type { JobRow, KeyedRow, KeyRow, KeyWakeRow } from "./watch.ts";

/** In the calm a job that has room is admitted within this time: workers poll every 3 s, and one whose loop is blocked is killed before. */
const ADMITTED_WITHIN_MS = 16_000;
/** How often that is checked. */
const CHECK_EVERY_MS = 250;
/** The lane of jobs that are ready but for their keys; from 1 on and below it: those that can be claimed. */
const HELD = 3;
/** The lane of jobs that are not due. */
const DELAYED = 0;
/** A start on time and one on the next whole ms are the same. */
const ROUNDING = 1e-6;

/** What limits a key. */
interface Bounds {
  readonly running: number;
  readonly intervalMs: number | null;
  readonly burst: number;
  readonly strict: boolean;
}

/** Limit and key, as they are named. */
type Name = string;

const NO_KINDS: ReadonlySet<string> = new Set();

export class KeysLaw {
  readonly #model: Model;
  readonly #keys = new Map<number, readonly Name[]>();
  readonly #own = new Map<Name, KeyRow>();
  /** How many wakes each key has. */
  readonly #awake = new Map<number, number>();
  /** The key by which a job takes turns. */
  readonly #fair = new Map<number, Name>();
  readonly #turns = new TurnsLaw();
  /** The attempts that count against their keys, by their jobs: one that is admitted counts as the next. */
  readonly #counted = new Map<number, number>();
  /** When jobs of a key were claimed, by the store's clock, since it last jumped; not those that were released before their handler began. */
  readonly #starts = new Map<Name, { readonly at: number; readonly attempt: string }[]>();
  readonly #begun = new Set<string>();
  readonly #neverBegan = new Set<string>();
  readonly #heldOffUntil = new Map<Name, number>();
  /** Queued again by a person, maybe next to another one of its strict key that has begun: which of the two comes first is not promised. */
  readonly #retried = new Set<number>();
  readonly #idleSince = new Map<number, number>();
  /** Which jobs became held before which. */
  readonly #heldSince = new Map<number, number>();
  /** Since when a held job was the one whose turn it is in a strict key. */
  readonly #firstSince = new Map<number, number>();
  #moments = 0;
  /** The clock has jumped, or the rows went back: times in the rows are not those that were seen. */
  #isOutOfTime = false;
  #offset: number | null = null;
  #checkedAt = 0;

  constructor(model: Model) {
    this.#model = model;
  }

  /** After every event. `calmAt`: since when nothing goes wrong any more; null: it may. */
  onTime(now: number, wall: number, calmAt: number | null): void {
    const offset = Math.round(wall - now);
    if (this.#offset !== null && Math.abs(offset - this.#offset) > 1) {
      this.#starts.clear();
      this.#isOutOfTime = true;
    }
    this.#offset = offset;
    if (calmAt === null || this.#keys.size === 0 || now - this.#checkedAt < CHECK_EVERY_MS) return;
    this.#checkedAt = now;
    for (const [seq, names] of this.#keys) this.#waitsInVain(seq, names, now, Math.floor(wall));
  }

  /** Only in the calm. */
  #waitsInVain(seq: number, names: readonly Name[], now: number, wall: number): void {
    const job = this.#model.jobs.get(seq)!;
    // Whose kind is fair waits for a worker, too.
    const isIdle = isHeld(job) && !this.#fair.has(seq) && names.every((name) => this.#hasRoom(job, name, wall));
    if (!isIdle) return void this.#idleSince.delete(seq);
    const since = this.#idleSince.get(seq) ?? now;
    this.#idleSince.set(seq, since);
    demand(
      now - since < ADMITTED_WITHIN_MS,
      () => `stuck key: ${job.id} is held although ${told(names)} had room for it for ${Math.round(now - since)} ms`,
    );
  }

  #hasRoom(job: JobRow, name: Name, wall: number): boolean {
    const { running, intervalMs, strict } = this.#boundsOf(name);
    if ((this.#heldOffUntil.get(name) ?? 0) > wall || this.#isPaused(name, wall)) return false;
    const own = this.#own.get(name);
    if (this.#isOutOfTime && own && Math.max(own.arrivalAt, own.heldOffUntil) > wall) return false;
    if (intervalMs !== null && (this.#starts.get(name)?.at(-1)?.at ?? 0) + intervalMs > wall) return false;
    const others = this.#jobsOf(name).filter(({ seq }) => seq !== job.seq);
    // A start is set aside for each that is admitted.
    if (intervalMs !== null && others.some((other) => isIn(other) && other.state === STATE.queued)) return false;
    // Who waits elsewhere may have been first.
    const since = this.#heldSince.get(job.seq) ?? 0;
    const mayKeepPlace = (other: JobRow): boolean =>
      isHeld(other) && this.#keys.get(other.seq)!.length > 1 && (this.#heldSince.get(other.seq) ?? 0) < since;
    if (strict && others.some(mayKeepPlace)) return false;
    if (strict && others.some((other) => hasBegun(other) || (isHeld(other) && other.seq < job.seq))) return false;
    return others.filter(isIn).length < running;
  }

  onMoment(moment: Moment): void {
    const changed = new Set<number>();
    const began: JobRow[] = [];
    for (const seen of moment.seen) {
      if (seen.subject === "keyed") this.#keyed(seen.is);
      if (seen.subject === "key" && seen.is) this.#own.set(nameOf(seen.is.name, seen.is.key), seen.is);
      if (seen.subject === "keyWake") this.#woke(seen.was, seen.is);
      if (seen.subject !== "job" || !seen.is) continue;
      const { was, is } = seen;
      changed.add(is.seq);
      if (was && isTerminal(was.state) && is.state === STATE.queued) this.#retried.add(is.seq);
      if (was?.state === STATE.queued && is.state === STATE.running) began.push(is);
    }
    if (this.#keys.size === 0) return;
    const wall = Math.floor(moment.wall);
    this.#moments++;
    for (const seq of changed) this.#waits(seq);
    for (const name of new Set([...changed].flatMap((seq) => this.#keys.get(seq) ?? []))) this.#noteFirst(name);
    const admitted = [...changed].flatMap((seq) => this.#admitted(seq));
    for (const job of admitted) for (const name of this.#keys.get(job.seq)!) this.#mayRun(job, name, wall);
    this.#hearReleases(moment);
    for (const job of began) for (const name of this.#keys.get(job.seq) ?? []) this.#mayStart(job, name, wall);
    const waiting = this.#fair.size > 0 ? this.#tookTurns(admitted, wall) : NO_KINDS;
    this.#hearHoldOffs(moment, wall);
    for (const answer of moment.answers)
      if (answer.of === "turn") {
        this.#turned(answer, wall);
        this.#aheadInTurn(answer, waiting);
      }
  }

  /** Returns the kinds of jobs that wait at their gate, for nothing but their turn. */
  #tookTurns(admitted: readonly JobRow[], wall: number): ReadonlySet<string> {
    const fairJob = (job: JobRow): (FairJob & { readonly seq: number })[] => {
      const key = this.#fair.get(job.seq);
      return key === undefined ? [] : [{ seq: job.seq, id: job.id, kind: String(job.kind), key: told([key]) }];
    };
    const waiting = [...this.#fair.keys()].flatMap((seq) => {
      const job = this.#model.jobs.get(seq)!;
      const couldStart = isHeld(job) && this.#keys.get(seq)!.every((name) => this.#hasRoom(job, name, wall));
      return couldStart ? fairJob(job) : [];
    });
    const weights = new Map([...this.#own].map(([name, { weight }]) => [told([name]), weight ?? 1]));
    this.#turns.onMoment(admitted.flatMap(fairJob), waiting, (key) => weights.get(key) ?? 1);
    // A job has room for a moment before it is at its gate: one key had none, it waited at the door of that key, and the wake of the key is not taken yet. No turn
    // could know it as one that waits for its turn, and the next one does (seed 175 of `aheadPastAGate`: a wake from elsewhere; 935: the visit read the door as
    // far as its worker had slots, and left a wake for the rest).
    const atDoor = (seq: number): boolean => this.#keys.get(seq)!.some((name) => this.#awake.has(idOf(name)));
    return new Set(waiting.flatMap(({ seq, kind }) => (atDoor(seq) ? [] : [kind])));
  }

  /** What is claimed ahead takes the next slots: a job that waits for its turn would wait behind it. */
  #aheadInTurn({ answer: { claimed }, asked, worker }: Answer & { of: "turn" }, waiting: ReadonlySet<string>): void {
    const passing = claimed
      .slice(asked)
      .find(({ lease }) => waiting.has(String(this.#model.jobs.get(lease.row)?.kind)));
    demand(
      passing === undefined,
      () => `${worker} claimed ahead ${passing!.lease.jobId} while a job of its kind waits at the gate`,
    );
  }

  #isPaused(name: Name, wall: number): boolean {
    const { pausedAt = null, pausedUntil = null } = this.#own.get(name) ?? {};
    return pausedAt !== null && (pausedUntil === null || pausedUntil > wall);
  }

  /**
   * A process that took a turn, and has nothing to do at once, has admitted everything that there is room for. Only if it has claimed as many jobs as its worker has
   * room for, it may leave keys to others, because it could not start their jobs: an admitted job and one at a door with a wake wait for the same
   * thing, the next turn of a worker with room. The bound is about what people read: after WAITS_FOR_WORKER_MS even a full worker admits them, so
   * that counts and `why` say that they wait for a worker and not for their key. So it has to look again within that time.
   */
  #turned({ answer: { live, nextDueInMs, claimed }, asked }: Answer & { of: "turn" }, wall: number): void {
    if (!live || nextDueInMs === 0) return;
    const mayLeave = claimed.length >= asked && nextDueInMs !== null && nextDueInMs <= WAITS_FOR_WORKER_MS;
    for (const [seq, names] of this.#keys) {
      const job = this.#model.jobs.get(seq)!;
      demand(
        !isHeld(job) ||
          (mayLeave && names.some((name) => this.#awake.has(idOf(name)))) ||
          this.#fair.has(seq) ||
          !names.every((name) => this.#hasRoom(job, name, wall)),
        () => `stuck key: a turn left ${job.id} held, and ${told(names)} had room for it`,
      );
    }
  }

  #woke(was: KeyWakeRow | null, is: KeyWakeRow | null): void {
    const key = was?.key ?? is!.key;
    const count = (this.#awake.get(key) ?? 0) + (is === null ? -1 : 1);
    if (count > 0) this.#awake.set(key, count);
    else this.#awake.delete(key);
  }

  #keyed(is: KeyedRow | null): void {
    if (is === null || is.keys === null) return;
    const keys = JSON.parse(is.keys) as readonly (readonly [string, string])[];
    this.#keys.set(
      is.job,
      keys.map(([limit, key]) => nameOf(limit, key)),
    );
    const fair = keys.find(([limit, key]) => jobKey(limit, key).id === is.fair);
    if (fair) this.#fair.set(is.job, nameOf(...fair));
    else this.#fair.delete(is.job);
  }

  #waits(seq: number): void {
    const job = this.#model.jobs.get(seq)!;
    if (!isHeld(job)) {
      if (!isTerminal(job.state) && job.lane !== DELAYED) return;
      this.#heldSince.delete(seq);
      this.#firstSince.delete(seq);
    } else if (!this.#heldSince.has(seq)) this.#heldSince.set(seq, this.#moments);
  }

  /** It keeps its turn while another key holds it, whatever becomes due later. */
  #noteFirst(name: Name): void {
    if (!this.#boundsOf(name).strict) return;
    const all = this.#jobsOf(name);
    if (all.some((job) => isIn(job) || hasBegun(job))) return;
    const held = all.filter(isHeld);
    if (held.length === 0 || held.some(({ seq }) => this.#firstSince.has(seq))) return;
    this.#firstSince.set(Math.min(...held.map(({ seq }) => seq)), this.#moments);
  }

  /** The job if it counts against its keys since this moment. */
  #admitted(seq: number): readonly JobRow[] {
    const job = this.#model.jobs.get(seq);
    if (!job || !this.#keys.has(seq)) return [];
    const before = this.#counted.get(seq);
    if (!isIn(job)) {
      this.#counted.delete(seq);
      return [];
    }
    const attempt = job.state === STATE.running ? job.fence : job.fence + 1;
    this.#counted.set(seq, attempt);
    return before === attempt ? [] : [job];
  }

  #mayRun(job: JobRow, name: Name, wall: number): void {
    const { running, strict } = this.#boundsOf(name);
    const all = this.#jobsOf(name);
    const taken = all.filter(isIn);
    demand(
      taken.length <= running,
      () =>
        `over limit: ${told([name])} allows ${running}, and ${taken.map(({ id }) => id).join(", ")} run or are admitted`,
    );
    const heldOff = this.#heldOffUntil.get(name) ?? 0;
    demand(
      heldOff <= wall,
      () => `${job.id} was admitted ${heldOff - wall} ms before ${told([name])} may start anything`,
    );
    if (strict) this.#inOrder(job, name, all);
  }

  #inOrder(job: JobRow, name: Name, all: readonly JobRow[]): void {
    const isFirst = job.fence === (job.state === STATE.running ? 1 : 0);
    for (const other of all) {
      if (other.seq === job.seq) continue;
      if (!isFirst && (this.#retried.has(job.seq) || this.#retried.has(other.seq))) continue;
      // A job that another key has held keeps its turn, although one that was enqueued before it was not due until later, or had ended and was retried
      // by hand since.
      const hadItsTurn =
        this.#keys.get(job.seq)!.length > 1 &&
        (this.#heldSince.get(other.seq) ?? 0) > (this.#firstSince.get(job.seq) ?? this.#moments);
      demand(
        !hasBegun(other) || (this.#retried.has(other.seq) && hadItsTurn),
        () =>
          `strict order: ${job.id} was admitted while ${other.id}, which has begun, has not ended in ${told([name])}`,
      );
      demand(
        !isFirst || !isHeld(other) || other.seq > job.seq || hadItsTurn,
        () => `strict order: ${job.id} was admitted before ${other.id} in ${told([name])}`,
      );
    }
  }

  #mayStart(job: JobRow, name: Name, wall: number): void {
    demand(
      this.#isOutOfTime || !this.#isPaused(name, wall),
      () => `paused key: ${job.id} was started, and ${told([name])} is paused`,
    );
    const { intervalMs, burst } = this.#boundsOf(name);
    if (intervalMs === null) return;
    const starts = this.#starts.get(name) ?? [];
    this.#starts.set(name, starts);
    starts.push({ at: wall, attempt: attemptOf(job) });
    starts.forEach(({ at }, i) => {
      const count = starts.length - i;
      demand(
        count <= burst + (wall - at) / intervalMs + ROUNDING,
        () => `too many starts: ${job.id} is the ${count}th of ${told([name])} within ${wall - at} ms`,
      );
    });
  }

  /** The handler of this attempt begins. */
  began({ id, fence: { epoch, number: fence } }: RunOf): void {
    const attempt = attemptOf({ id, epoch, fence });
    this.#begun.add(attempt);
    demand(
      !this.#neverBegan.has(attempt),
      () => `too many starts: attempt ${fence} of ${id} began after it was released as one that never did`,
    );
  }

  /** What never began does not count as a start of its keys: the next one may come as if it had not been claimed. */
  #hearReleases({ answers }: Moment): void {
    for (const answer of answers) {
      if (answer.of !== "turn") continue;
      answer.settlements.forEach(({ lease: { jobId: id, epoch, fence }, change }, i) => {
        const attempt = attemptOf({ id, epoch, fence });
        if (change.name !== "release" || answer.answer.settled[i]?.is !== "applied" || this.#begun.has(attempt)) return;
        this.#neverBegan.add(attempt);
        for (const [name, starts] of this.#starts)
          this.#starts.set(
            name,
            starts.filter((start) => start.attempt !== attempt),
          );
      });
    }
  }

  #hearHoldOffs({ answers }: Moment, wall: number): void {
    for (const answer of answers) {
      if (answer.of !== "write") continue;
      answer.writes.forEach(({ write }, i) => {
        if (write.type !== "holdOff" || answer.answers[i]?.is !== "applied") return;
        const name = nameOf(write.key.limit, write.key.key);
        this.#heldOffUntil.set(name, Math.max(this.#heldOffUntil.get(name) ?? 0, wall + write.forMs));
      });
    }
  }

  #jobsOf(name: Name): JobRow[] {
    const jobs: JobRow[] = [];
    for (const [seq, names] of this.#keys) if (names.includes(name)) jobs.push(this.#model.jobs.get(seq)!);
    return jobs;
  }

  #boundsOf(name: Name): Bounds {
    const [limit] = name.split("\n") as [string];
    const own = this.#own.get(name);
    const { running, intervalMs, burst, strict } = declared(limit);
    const most = own?.running ?? running ?? Number.POSITIVE_INFINITY;
    return {
      running: strict ? Math.min(1, most) : most,
      intervalMs: own?.intervalMs ?? intervalMs,
      burst: own?.burst ?? burst,
      strict,
    };
  }

  /** The rows are older ones. What started since then is forgotten with them. */
  wentBack(keyed: readonly KeyedRow[], own: readonly KeyRow[], wakes: readonly KeyWakeRow[]): void {
    this.#isOutOfTime = true;
    for (const memory of [
      this.#heldSince,
      this.#firstSince,
      this.#keys,
      this.#fair,
      this.#own,
      this.#counted,
      this.#starts,
      this.#heldOffUntil,
      this.#idleSince,
      this.#awake,
    ])
      memory.clear();
    for (const one of wakes) this.#woke(null, one);
    this.#turns.wentBack();
    for (const one of keyed) this.#keyed(one);
    for (const one of own) {
      this.#own.set(nameOf(one.name, one.key), one);
      // A hold-off that the backup has goes on.
      if (one.heldOffUntil > 0) this.#heldOffUntil.set(nameOf(one.name, one.key), one.heldOffUntil);
    }
    for (const seq of this.#keys.keys()) {
      this.#admitted(seq);
      this.#heldSince.set(seq, 0);
      // Which of them had its turn in the backup is not known.
      this.#firstSince.set(seq, 0);
    }
  }
}

/** Admitted or running. */
function isIn({ state, lane }: JobRow): boolean {
  return state === STATE.running || (state === STATE.queued && lane > 0 && lane < HELD);
}

function isHeld({ state, lane }: JobRow): boolean {
  return state === STATE.queued && lane === HELD;
}

/** An attempt of it has begun, and it has not ended. */
function hasBegun({ state, fence }: JobRow): boolean {
  return !isTerminal(state) && fence > 0;
}

function nameOf(limit: string, key: string): Name {
  return `${limit}\n${key}`;
}

function idOf(name: Name): number {
  const [limit, key] = name.split("\n") as [string, string];
  return jobKey(limit, key).id;
}

function told(names: readonly Name[]): string {
  return names.map((name) => name.replace("\n", " of ")).join(" and ");
}

/** From the workloads, and for a throttle from its name; never from the store. */
function declared(limit: string): Omit<Bounds, "running"> & { readonly running: number | null } {
  const [, everyMs] = /^throttle\/(\d+)$/.exec(limit) ?? [];
  if (everyMs !== undefined) return { running: null, intervalMs: Number(everyMs), burst: 1, strict: false };
  if (limit === FAIR) return { running: null, intervalMs: null, burst: 1, strict: false };
  return limitFacts(limit);
}
