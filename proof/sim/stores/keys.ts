// The parts of scripts that are about jobs with keys. There are no wakes: every turn looks at all jobs that are held, and `admit` decides. What is
// taken is counted from the records of the jobs, so nothing has to be given back.
import {
  type Admission,
  admit,
  type HeldCandidate,
  type JobKey,
  type KeyFacts,
  type KeyLimit,
  type LimitSettings,
  startOf,
  throttleSettings,
} from "../../../src/job/limits.ts";
import { type Data, isHeld, type JobRecord, type KeyRecord, NOT_ADMITTED } from "./records.ts";

/** The order at a door of a job of a strict limit that has begun: before all others. */
const FIRST = 1_000_000;

const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };

/** Admits what there is room for. Returns how many. */
export function admitHeld(data: Data): number {
  let admitted = 0;
  // A job that was moved is looked at again at its other door, which has no room: nothing is moved for long.
  for (;;) {
    const decided = decide(data);
    for (const row of decided.admitted) data.putJob({ ...data.job(row)!, ...NOT_ADMITTED, admitted: true });
    for (const { job, door, keepsPlace } of decided.moved) data.putJob({ ...data.job(job)!, door, keepsPlace });
    admitted += decided.admitted.length;
    if (decided.moved.length === 0) return admitted;
  }
}

function decide(data: Data): Admission {
  const held = data.queued().filter((job) => isHeld(job, data.now));
  return admit({ now: data.now, keys: factsOf(data, held), candidates: candidatesOf(data, held) });
}

/** When time gives room to a job that is held; null: that is not known. */
export function nextRoomAt(data: Data): number | null {
  const { due } = decide(data);
  return due.size === 0 ? null : Math.min(...due.values());
}

/** The job was claimed: it starts now. */
export function spendStarts(data: Data, job: JobRecord): void {
  for (const facts of factsOf(data, [job])) {
    if (facts.limit.intervalMs === null) continue;
    const { arrivalAt } = startOf(facts, data.now);
    data.putKey(facts.id, { ...data.key(facts.id), arrivalAt });
  }
}

/** Of each door in the order of admission. */
function candidatesOf(data: Data, held: readonly JobRecord[]): HeldCandidate[] {
  const order = (job: JobRecord): number => (isStrict(data, job) ? (job.fence > 0 ? FIRST : 0) : job.priority);
  return held
    .toSorted((a, b) => order(b) - order(a) || a.row - b.row)
    .map((job) => ({
      job: job.row,
      door: doorOf(data, job).id,
      keys: job.keys.map(({ id }) => id),
      keepsPlace: job.keepsPlace,
    }));
}

function isStrict(data: Data, { keys }: JobRecord): boolean {
  return strictKey(data, keys) !== undefined;
}

function strictKey(data: Data, keys: readonly JobKey[]): JobKey | undefined {
  return keys.find(({ limit }) => limitOf(data, limit).strict);
}

/** The key at which a held job waits: at first the strict one, where it is seen whose turn it is. */
export function doorOf(data: Data, { keys, door }: JobRecord): JobKey {
  return keys.find(({ id }) => id === door) ?? strictKey(data, keys) ?? keys[0]!;
}

function factsOf(data: Data, held: readonly JobRecord[]): KeyFacts[] {
  const keys = new Map(held.flatMap((job) => job.keys.map((key) => [key.id, key])));
  if (keys.size === 0) return [];
  const running = data.running();
  const queued = data.queued();
  return [...keys.values()].map(({ id, limit: name }) => {
    const { own, arrivalAt, heldOffUntil }: KeyRecord = data.key(id);
    const limit = { ...limitOf(data, name), ...own };
    const has = (job: JobRecord): boolean => job.keys.some((key) => key.id === id);
    const unclaimed = queued.filter((job) => job.admitted && has(job)).length;
    const first = queued.filter((job) => limit.strict && has(job) && isFirst(data, job)).length;
    return { id, limit, taken: running.filter(has).length + unclaimed + first, unclaimed, arrivalAt, heldOffUntil };
  });
}

/** Under a strict limit it blocks the others: it has run and will go on later, or is held by another key although it is its turn. */
function isFirst(data: Data, job: JobRecord): boolean {
  return job.keepsPlace || (job.fence > 0 && !job.admitted && !isHeld(job, data.now));
}

function limitOf(data: Data, name: string): Omit<LimitSettings, "name"> {
  return data.limit(name) ?? throttleSettings(name) ?? UNLIMITED;
}

export function declareLimits(data: Data, limits: readonly LimitSettings[]): void {
  for (const limit of limits) data.putLimit(limit);
}

export function setLimit(data: Data, { id }: JobKey, own: KeyLimit | null): void {
  data.putKey(id, { ...data.key(id), own: own ?? {} });
}

/** Nothing of this key starts before then. A later time that is kept already stays. */
export function holdOff(data: Data, { id }: JobKey, until: number): void {
  const key = data.key(id);
  data.putKey(id, { ...key, heldOffUntil: Math.max(key.heldOffUntil, until) });
}
