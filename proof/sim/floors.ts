// Floors of claims on PostgreSQL (src/stores/postgres/floors.ts): workers claim from an index in which what was claimed lies dead, next to enqueues that commit
// late and jobs that return, from this worker and from others. The laws say for how long a ready job may be below a floor. What is real here is the memory of the
// floors and the ranges that follow from it; the index is a list.
import { type Floor, Floors, LAG_MS, LOOK_AT_MOST_MS, type Range, rangesOf } from "../../src/stores/postgres/floors.ts";
import type { Caught } from "./mutation.ts";
import { demand } from "./oracle/violation.ts";
import { SeededRandom } from "./world/random.ts";

export interface FloorCampaign {
  readonly seeds: number;
  readonly violations: number;
  readonly claims: number;
  /** Claims that began at floors: without such, the laws would hold for nothing. */
  readonly bounded: number;
  readonly broken: readonly string[];
}

export interface FloorMutant {
  readonly name: string;
  readonly what: string;
  readonly make: () => Memory;
}

type Memory = Pick<Floors, "of" | "lookInMs" | "lookAgain" | "read">;

/** The real memory with one part of it replaced. */
const changed = (
  change: (floors: Floors) => Partial<Memory>,
  ...given: ConstructorParameters<typeof Floors>
): Memory => {
  const floors = new Floors(...given);
  const { of, lookInMs, lookAgain, read } = change(floors);
  return {
    of: of ?? ((...args) => floors.of(...args)),
    lookInMs: lookInMs ?? ((...args) => floors.lookInMs(...args)),
    lookAgain: lookAgain ?? (() => floors.lookAgain()),
    read: read ?? ((...args) => floors.read(...args)),
  };
};

export const FLOOR_MUTANTS: readonly FloorMutant[] = [
  {
    name: "floorNeverLooks",
    what: "a worker that once began at a floor never looks from the front again",
    make: () => {
      let kept: readonly Floor[] | null = null;
      return changed((floors) => ({
        of: (kinds, mono) => (kept = floors.of(kinds, mono) ?? kept),
        lookInMs: () => LOOK_AT_MOST_MS,
      }));
    },
  },
  {
    name: "floorAtOnce",
    what: "a floor is at the last claimed job at once, while enqueues with lower numbers are under way",
    make: () => changed(() => ({}), 0),
  },
  {
    name: "floorOverReturned",
    what: "a worker does not look from the front after it has returned a job itself",
    make: () => changed(() => ({ lookAgain: () => {} })),
  },
  {
    name: "floorOverUnread",
    what: "a full claim counts as if it had read everything",
    make: () => changed((floors) => ({ read: (read) => floors.read({ ...read, isFull: false }) })),
  },
];

interface Job {
  readonly seq: number;
  readonly priority: number;
  readonly numberedAt: number;
  committedAt: number;
  /** From then on it can be claimed, unless it was. */
  readySince: number;
  hasReturned: boolean;
}

interface Held {
  readonly job: Job;
  readonly endsAt: number;
  readonly returns: boolean;
}

interface Worker {
  readonly floors: Memory;
  readonly room: number;
  held: Held[];
  nextAt: number;
}

const DURATION_MS = 15_000;
const PRIORITIES = [0, 0, 0, 0, 5, -3];
/** What the walk over one dead entry takes: more than on a real server, so that a short history has long walks. */
const DEAD_MS = 0.02;
const TURN_MS = 1;
const GAP_MS = 20;
/** About how long a job has a slot. */
const SLOT_MS = 40;
/** A job that is hidden is found by the first turn after the look is due. */
const FOUND_WITHIN_MS = LOOK_AT_MOST_MS + 2 * GAP_MS + 200;

class FloorWorld {
  claims = 0;
  bounded = 0;
  readonly #random: SeededRandom;
  /** Ready, or not committed yet. */
  readonly #waiting = new Set<Job>();
  readonly #ended: Job[] = [];
  /** What was claimed and can't be removed. */
  #dead: Job[] = [];
  readonly #workers: Worker[];
  #now = 0;
  #seq = 0;
  #pinnedUntil = 0;

  constructor(seed: number, make: () => Memory) {
    this.#random = new SeededRandom(`floors ${seed}`);
    this.#workers = Array.from({ length: 1 + this.#random.below(3) }, () => ({
      floors: make(),
      room: [3, 20, 60][this.#random.below(3)]!,
      held: [],
      nextAt: 0,
    }));
  }

  unfold(): void {
    const slots = this.#workers.reduce((sum, { room }) => sum + room, 0);
    // Mostly less than the workers can take, and bursts that they can't.
    const perMs = (slots / SLOT_MS) * (0.3 + 0.6 * this.#random.next());
    for (this.#now = 1; this.#now < DURATION_MS; this.#now++) {
      if (this.#now >= this.#pinnedUntil) {
        this.#dead = [];
        if (this.#random.below(500) === 0) this.#pinnedUntil = this.#now + 2_000 + this.#random.below(8_000);
      }
      const burst = this.#random.below(400) === 0 ? slots * 3 : 0;
      for (let expected = perMs + burst; expected > 0; expected--) if (this.#random.next() < expected) this.#enqueue();
      if (this.#random.below(300) === 0) this.#returnFromElsewhere();
      for (const worker of this.#workers) if (worker.nextAt <= this.#now) this.#turn(worker);
    }
  }

  #enqueue(): void {
    const lateMs = this.#random.below(100) === 0 ? this.#random.below(5_000) : this.#random.below(LAG_MS / 4);
    const committedAt = this.#now + lateMs;
    const priority = PRIORITIES[this.#random.below(PRIORITIES.length)]!;
    this.#waiting.add({
      seq: ++this.#seq,
      priority,
      numberedAt: this.#now,
      committedAt,
      readySince: committedAt,
      hasReturned: false,
    });
  }

  /** A recovery, or a person, makes an old job ready again. */
  #returnFromElsewhere(): void {
    if (this.#ended.length === 0) return;
    const [job] = this.#ended.splice(this.#random.below(this.#ended.length), 1);
    this.#makeReady(job!);
  }

  #makeReady(job: Job): void {
    job.readySince = this.#now;
    job.hasReturned = true;
    this.#waiting.add(job);
  }

  #turn(worker: Worker): void {
    const ended = worker.held.filter(({ endsAt }) => endsAt <= this.#now);
    worker.held = worker.held.filter(({ endsAt }) => endsAt > this.#now);
    const returned = ended.filter(({ returns }) => returns);
    for (const { job } of returned) this.#makeReady(job);
    for (const { job, returns } of ended) if (!returns) this.#ended.push(job);
    if (returned.length > 0) worker.floors.lookAgain();
    const room = worker.room - worker.held.length;
    let durationMs = TURN_MS;
    if (room > 0) durationMs += this.#claim(worker, room, new Set(returned.map(({ job }) => job)));
    worker.nextAt = this.#now + Math.ceil(durationMs) + this.#random.below(GAP_MS);
  }

  /** Returns how long it took. */
  #claim(worker: Worker, room: number, returned: ReadonlySet<Job>): number {
    const floors = worker.floors.of("one kind", this.#now);
    const ranges = floors === null ? [{ highest: 100, lowest: -100, floor: null }] : rangesOf(floors);
    const ready = [...this.#waiting].filter(({ readySince }) => readySince <= this.#now).sort(inOrder);
    const taken = ready.filter((job) => ranges.some((range) => isIn(range, job))).slice(0, room);
    const isFull = taken.length === room;
    const walked = this.#dead.filter((job) => ranges.some((range) => isIn(range, job))).length;
    const ms = walked * DEAD_MS + taken.length * 0.01;
    this.claims++;
    if (floors !== null) this.bounded++;
    if (!isFull) this.#law(without(ready, taken), returned);
    for (const job of taken) {
      this.#waiting.delete(job);
      this.#dead.push(job);
      const endsAt = this.#now + 1 + this.#random.below(SLOT_MS);
      worker.held.push({ job, endsAt, returns: this.#random.below(50) === 0 });
    }
    worker.floors.read({ taken, isFull, bounded: floors !== null, beganMono: this.#now, endedMono: this.#now + ms });
    return ms;
  }

  /** `hidden`: ready, and not claimed although there was room for it. */
  #law(hidden: readonly Job[], returned: ReadonlySet<Job>): void {
    for (const job of hidden) {
      const { seq, numberedAt, committedAt, readySince, hasReturned } = job;
      const sinceMs = this.#now - readySince;
      demand(sinceMs <= FOUND_WITHIN_MS, () => `a ready job is below the floor: job ${seq}, for ${sinceMs} ms`);
      demand(
        !returned.has(job),
        () => `a ready job is below the floor: job ${seq}, which this worker has returned itself`,
      );
      const lateMs = committedAt - numberedAt;
      demand(
        hasReturned || lateMs > LAG_MS,
        () => `a ready job is below the floor: job ${seq}, committed after ${lateMs} ms`,
      );
    }
  }
}

function inOrder(one: Job, other: Job): number {
  return other.priority - one.priority || one.seq - other.seq;
}

function without(jobs: readonly Job[], taken: readonly Job[]): Job[] {
  const gone = new Set(taken);
  return jobs.filter((job) => !gone.has(job));
}

function isIn({ highest, lowest, floor }: Range, { priority, seq }: Job): boolean {
  return priority <= highest && priority >= lowest && (floor === null || seq >= floor);
}

export function runFloors(from: number, seeds: number, make: () => Memory = () => new Floors()): FloorCampaign {
  const broken: string[] = [];
  let claims = 0;
  let bounded = 0;
  for (let seed = from; seed < from + seeds; seed++) {
    const world = new FloorWorld(seed, make);
    try {
      world.unfold();
    } catch (thrown) {
      broken.push(`seed ${seed}: ${(thrown as Error).message}`);
    }
    claims += world.claims;
    bounded += world.bounded;
  }
  return { seeds, violations: broken.length, claims, bounded, broken };
}

export function huntFloors(budget: number, mutants: readonly FloorMutant[]): readonly Caught[] {
  return mutants.map(({ name, make }) => {
    for (let seed = 1; seed <= budget; seed++) {
      const [violation] = runFloors(seed, 1, make).broken;
      if (violation !== undefined) return { mutant: name, seed, seeds: seed, violation };
    }
    return { mutant: name, seed: null, seeds: budget, violation: null };
  });
}
