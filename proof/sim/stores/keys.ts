// The parts of scripts that are about jobs with keys. There are no wakes: every turn looks at all jobs that are held, and `admit` decides. What is
// taken is counted from the records of the jobs, so nothing has to be released.
import {
  type Admission,
  admit,
  gateFacts,
  type HeldCandidate,
  type JobKey,
  jobKey,
  type KeyFacts,
  type KeyLimit,
  type KeyPause,
  type KeyState,
  type LimitSettings,
  returnedMs,
  startOf,
  takeTurns,
  impliedSettings,
} from "../../../src/job/limits.ts";
import type { KeyQuery, Room } from "../../../src/stores/port.ts";
import { type Data, isFresh, isHeld, isKindPaused, type JobRecord, type KeyRecord, NOT_ADMITTED } from "./records.ts";

/** The order at a door of a job of a strict limit that has begun: before all others. */
const FIRST = 1_000_000;

const UNLIMITED = { running: null, intervalMs: null, burst: 1, strict: false };

/** Admits what there is room for. Returns how many. */
export function admitHeld(data: Data, room: Room): number {
  let admitted = 0;
  // A job that was moved is looked at again at its other door, which has no room: nothing is moved for long.
  for (;;) {
    const decided = decide(data, (kind) => demandOf(data, kind, room));
    for (const row of decided.admitted) data.putJob({ ...data.job(row)!, ...NOT_ADMITTED, admitted: true });
    for (const { job, door, keepsPlace } of decided.moved) data.putJob({ ...data.job(job)!, door, keepsPlace });
    for (const [id, ring] of decided.rings) data.putRing(id, ring);
    admitted += decided.admitted.length;
    if (decided.moved.length === 0) return admitted;
  }
}

/** How many more jobs of a fair kind a worker can take than are ready already. */
function demandOf(data: Data, name: string, { total, kinds }: Room): number {
  const most = Math.min(total, kinds.find(({ kind }) => kind === name)?.room ?? 0);
  if (isKindPaused(data.kind(name)!, data.now)) return 0;
  return Math.max(0, most - data.queued().filter((job) => job.kind === name && isFresh(job, data.now)).length);
}

function decide(data: Data, demand: (kind: string) => number): Admission {
  const held = data.queued().filter((job) => isHeld(job, data.now));
  const fair = new Set(held.flatMap((job) => (job.fair === null ? [] : [job.kind])));
  const gates = [...fair].map((kind) => gateFacts(gateOf(kind), demand(kind)));
  const keys = [...factsOf(data, held), ...gates];
  return admit({ now: data.now, keys, candidates: candidatesOf(data, held) });
}

/** When time gives room to a job that is held; null: that is not known. */
export function nextRoomAt(data: Data): number | null {
  const { due } = decide(data, () => Number.MAX_SAFE_INTEGER);
  return due.size === 0 ? null : Math.min(...due.values());
}

/** The job was claimed: it starts now. */
export function spendStarts(data: Data, job: JobRecord): void {
  const rated = factsOf(data, [job]).filter(({ limit }) => limit.intervalMs !== null);
  for (const facts of rated) {
    const { arrivalAt } = startOf(facts, data.now);
    data.putKey(facts.id, { ...data.key(facts.id), arrivalAt });
  }
  if (rated.length > 0) data.putJob({ ...job, spent: rated.map(({ id }) => id) });
}

/** The job was claimed, is not running any more, and never began. `job`: as it was while it ran. */
export function returnStarts(data: Data, { row, spent, startedAt }: JobRecord): void {
  const isAlike = (job: JobRecord, id: number): boolean =>
    job.row !== row && job.startedAt === startedAt && job.keys.some((key) => key.id === id);
  for (const { id, limit, arrivalAt } of factsOf(data, [data.job(row)!])) {
    if (limit.intervalMs === null || !spent.includes(id)) continue;
    const alike = 1 + data.running().filter((job) => isAlike(job, id)).length;
    const returned = returnedMs(limit.intervalMs, startedAt, alike, data.now);
    data.putKey(id, { ...data.key(id), arrivalAt: arrivalAt - returned });
  }
}

/** Of each door in the order of admission, and of each gate in that in which its keys take turns. Neither comes always first. */
function candidatesOf(data: Data, held: readonly JobRecord[]): HeldCandidate[] {
  const order = (job: JobRecord): number => (isStrict(data, job) ? (job.fence > 0 ? FIRST : 0) : job.priority);
  const inOrder = held.toSorted((a, b) => order(b) - order(a) || a.row - b.row);
  const lists = [inOrder.filter(({ fair }) => fair === null).map((job) => candidateOf(data, job))];
  for (const kind of new Set(held.flatMap((job) => (job.fair === null ? [] : [job.kind])))) {
    const jobs = Map.groupBy(
      inOrder.filter((job) => job.kind === kind && job.fair !== null),
      ({ fair }) => fair!,
    );
    const members = [...jobs].map(([key, own]) => ({
      key,
      weight: data.key(key).own.weight ?? 1,
      jobs: own.map((job) => candidateOf(data, job)),
    }));
    lists.push(takeTurns(gateOf(kind), data.ring(gateOf(kind)), members));
  }
  return interleaved(lists, data.meta().writes);
}

function candidateOf(data: Data, job: JobRecord): HeldCandidate {
  const keys = job.keys.map(({ id }) => id);
  const own = job.fair === null ? keys : [...keys, gateOf(job.kind)];
  return { job: job.row, door: doorOf(data, job), keys: own, keepsPlace: job.keepsPlace };
}

/** One of each list after the other, beginning with another one each time. */
function interleaved<T>(lists: readonly (readonly T[])[], from: number): T[] {
  const rotated = lists.map((_, i) => lists[(from + i) % lists.length]!);
  const longest = Math.max(...lists.map(({ length }) => length));
  return Array.from({ length: longest }, (_, i) =>
    rotated.flatMap((list) => (i < list.length ? [list[i]!] : [])),
  ).flat();
}

/** The gate of a fair kind: no key has a number below 0. */
function gateOf(kind: string): number {
  return -jobKey("gate", kind).id;
}

function isStrict(data: Data, { keys }: JobRecord): boolean {
  return strictKey(data, keys) !== undefined;
}

function strictKey(data: Data, keys: readonly JobKey[]): JobKey | undefined {
  return keys.find(({ limit }) => limitOf(data, limit).strict);
}

/** Where a held job waits: at first at the strict key, where it is seen whose turn it is; that of a fair kind at its gate. */
export function doorOf(data: Data, { keys, door, fair, kind }: JobRecord): number {
  return door ?? strictKey(data, keys)?.id ?? (fair === null ? keys[0]!.id : gateOf(kind));
}

function factsOf(data: Data, held: readonly JobRecord[]): KeyFacts[] {
  const keys = new Map(held.flatMap((job) => job.keys.map((key) => [key.id, key])));
  if (keys.size === 0) return [];
  const running = data.running();
  const queued = data.queued();
  return [...keys.values()].map(({ id, limit: name }) => {
    const { own, arrivalAt, heldOffUntil: heldOff, paused }: KeyRecord = data.key(id);
    const heldOffUntil = paused === null ? heldOff : Math.max(heldOff, paused.until ?? Number.POSITIVE_INFINITY);
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
  return data.limit(name) ?? impliedSettings(name) ?? UNLIMITED;
}

export function declareLimits(data: Data, limits: readonly LimitSettings[]): void {
  for (const limit of limits) data.putLimit(limit);
}

export function setLimit(data: Data, { id, limit, key }: JobKey, own: KeyLimit | null): void {
  data.putKey(id, { ...data.key(id), name: { limit, key }, own: own ?? {} });
}

/** Nothing of this key starts from now on: what was admitted and not claimed is held again. Null: it may start again. */
export function pauseKey(data: Data, { id, limit, key }: JobKey, pause: KeyPause | null): void {
  const forMs = pause?.forMs ?? null;
  const until = forMs === null ? null : data.now + forMs;
  const paused = pause === null ? null : { reason: pause.reason, at: data.now, until };
  data.putKey(id, { ...data.key(id), name: { limit, key }, paused });
  if (pause === null) return;
  for (const job of data.queued())
    if (job.admitted && job.keys.some((key) => key.id === id)) data.putJob({ ...job, ...NOT_ADMITTED });
}

/** Nothing of this key starts before then. A later time that is kept already stays. */
export function holdOff(data: Data, { id, limit, key }: JobKey, until: number): void {
  const before = data.key(id);
  data.putKey(id, { ...before, name: { limit, key }, heldOffUntil: Math.max(before.heldOffUntil, until) });
}

export function keyStates(data: Data, query: KeyQuery): KeyState[] {
  if ("key" in query) return [keyState(data, query.key)];
  const named = data.keyIds().flatMap((id) => {
    const { name, own, heldOffUntil, paused } = data.key(id);
    const hasOwn = Object.keys(own).length > 0 || paused !== null || heldOffUntil > data.now;
    return name !== null && hasOwn && (query.limit ?? name.limit) === name.limit ? [{ ...name, id }] : [];
  });
  named.sort((a, b) => compare(a.limit, b.limit) || compare(a.key, b.key));
  return named.slice(0, query.most).map((key) => keyState(data, key));
}

function compare(a: string, b: string): number {
  return a < b ? -1 : a > b ? 1 : 0;
}

function keyState(data: Data, { id, limit, key }: JobKey): KeyState {
  const { own, heldOffUntil, paused } = data.key(id);
  const { name: _, ...declared } = { name: limit, ...limitOf(data, limit) };
  const { weight: __, ...bounds } = own;
  const has = (job: JobRecord): boolean => job.keys.some((one) => one.id === id);
  const isOn = paused !== null && (paused.until === null || paused.until > data.now);
  const jobs = [...data.queued(), ...data.running()].filter(has);
  return {
    limit,
    key,
    applies: { ...declared, ...bounds },
    own,
    taken: jobs.filter(({ state, admitted }) => state === "running" || admitted).length,
    held: jobs.filter((job) => isHeld(job, data.now) && doorOf(data, job) === id).length,
    paused: isOn ? paused : null,
    heldOffUntil: heldOffUntil > data.now ? heldOffUntil : null,
  };
}
