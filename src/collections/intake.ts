// The way of parts into the store: what is known is asked for, new bytes go to their blobs, the blobs become durable, then their rows are kept, and only then
// does a put resolve. Blobs are written as parts come; the two calls of the store are shared by all parts that wait for them. Killed anywhere, a repetition
// finds what is there: the blob has the same name and the row the same key.
import { answerPut, type KnownPlace, type Part, type PartPlace, type PutAnswer } from "../job/collections.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Clock } from "../job/time.ts";
import { endComplete } from "../recovery/collection-ends.ts";
import type { AnnounceAnswer, Collections } from "../stores/collections.ts";
import { blobOf, type PartBlobs, sha256 } from "./blob-names.ts";

/** A part on its way, with its bytes. */
export interface IncomingPart extends PartPlace {
  readonly data: Uint8Array;
  /** The SHA-256 of the data, if it was made before. */
  readonly sha256?: string;
}

/** Parts of one call of the store. */
const MAX_TOGETHER = 500;
/** How many bytes are hashed in one turn of the event loop, and one part: about 0.3 ms. */
const HASHED_PER_TURN = 512 * 1024;
/** How long rows wait for others whose blobs are being written, at least. */
const GATHER_MS = 1;
/** And twice as long as the latest call took, because the process has that time again for each call that is saved; at most this. */
const MAX_GATHER_MS = 50;

type IntakeClock = Pick<Clock, "mono" | "after" | "soon">;

export class Intake {
  readonly #blobs: PartBlobs;
  readonly #events: Emitter;
  readonly #clock: IntakeClock;
  readonly #known: Together<PartPlace, KnownPlace | null>;
  readonly #keep: Together<Part, PutAnswer>;
  readonly #checks: Together<string, string>;
  /** Blobs that are being written. */
  #writing = 0;
  /** So many bytes more are hashed before the next turn of the event loop. */
  #mayHash = HASHED_PER_TURN;
  #turning: Promise<void> | null = null;

  constructor(collections: Collections, blobs: PartBlobs, events: Emitter, clock: IntakeClock) {
    this.#blobs = blobs;
    this.#events = events;
    this.#clock = clock;
    this.#known = new Together(clock, (places) => collections.known(places));
    this.#keep = new Together(clock, (parts) => collections.put(parts), {
      coming: () => this.#writing,
      // Once for all of them: a sync for each part made two of three syncs of the disk.
      before: async (parts) => {
        if (blobs.stage) await blobs.sync?.(parts.map(({ blob }) => blob));
      },
    });
    this.#checks = new Together(clock, async (ids) => {
      await endComplete(collections, events, [...new Set(ids)]);
      return ids;
    });
  }

  /** What became of each, in their order. Resolves when all of it is durable. */
  async put(kind: string, incoming: readonly IncomingPart[]): Promise<PutAnswer[]> {
    const known = await this.#known.call(
      incoming.map(({ collection, series, ordinal }) => ({ collection, series, ordinal })),
    );
    // The ids of another kind are unknown to this one, whose blobs and limits are its own.
    const ours = known.map((place) => (place?.kind === kind ? place : null));
    const stored = await Promise.all(incoming.map((part, at) => this.#store(kind, part, ours[at]!)));
    const answers = stored.map(({ answer }) => answer);
    const parts = stored.flatMap(({ part }, at) => (part === null ? [] : [{ at, part }]));
    if (parts.length > 0) {
      const kept = await this.#keep.call(parts.map(({ part }) => part));
      for (const [i, { at }] of parts.entries()) answers[at] = kept[i]!;
      await this.#dropUnused(parts.filter((_, i) => kept[i] === "conflict" || kept[i] === "unknown"));
    }
    this.#tell(kind, incoming, answers);
    return answers;
  }

  /** Stores the bytes of a part that may be new. `part`: null if there is nothing to keep. */
  async #store(
    kind: string,
    { collection, series, ordinal, data, sha256: made }: IncomingPart,
    known: KnownPlace | null,
  ): Promise<{ readonly answer: PutAnswer; readonly part: Part | null }> {
    const place = { collection, series, ordinal };
    if (known !== null && known.sha256 !== null)
      return { answer: answerPut(known, { ordinal, sha256: made ?? (await this.#hash(data)) }), part: null };
    // Whatever the hash is: nothing is known that it could differ from.
    const answer = answerPut(known, { ordinal, sha256: "" });
    if (answer !== "accepted") return { answer, part: null };
    this.#writing++;
    try {
      // The disk has something to do while the hash is made.
      const staged = this.#blobs.stage?.(data);
      const hash = made ?? (await this.#hash(data));
      const part = { ...place, blob: blobOf(kind, place, hash), bytes: data.length, sha256: hash };
      await (staged
        ? staged.place(part.blob)
        : this.#blobs.put(part.blob, data, { size: data.length, sha256: hash, isHashed: true }));
      return { answer, part };
    } finally {
      this.#writing--;
    }
  }

  /** Some of them in each turn of the event loop, and between two turns other callbacks run: or the syncs of all parts would begin after the last hash. */
  async #hash(data: Uint8Array): Promise<string> {
    while (this.#mayHash <= 0) await this.#nextTurn();
    this.#mayHash -= data.length;
    return sha256(data);
  }

  #nextTurn(): Promise<void> {
    this.#turning ??= new Promise((resolve) =>
      this.#clock.soon(() => {
        this.#turning = null;
        this.#mayHash = HASHED_PER_TURN;
        resolve();
      }),
    );
    return this.#turning;
  }

  /** Looks whether these collections are complete now. A call during a check shares the next one. */
  async check(ids: readonly string[]): Promise<void> {
    await this.#checks.call(ids);
  }

  /** Blobs that no row names. One that a kill leaves is deleted with its collection. */
  async #dropUnused(parts: readonly { readonly part: Part }[]): Promise<void> {
    if (parts.length > 0) await this.#blobs.delete(parts.map(({ part }) => part.blob)).catch(() => {});
  }

  #tell(kind: string, incoming: readonly IncomingPart[], answers: readonly PutAnswer[]): void {
    for (const [at, { collection, series, ordinal, data }] of incoming.entries()) {
      const answer = answers[at]!;
      if (answer === "accepted") {
        if (this.#events.has("part.accepted"))
          this.#events.emit("part.accepted", { collection, kind, series, ordinal, bytes: data.length });
      } else this.#events.emit("part.skipped", { collection, kind, series, ordinal, answer });
    }
  }
}

interface Waiting<In, Out> {
  readonly items: readonly In[];
  readonly resolve: (answers: Out[]) => void;
  readonly reject: (reason: unknown) => void;
}

/** One call at a time, and what is asked for meanwhile goes into the next one. Answers are by place; a call that fails, fails for all in it. */
class Together<In, Out> {
  readonly #clock: IntakeClock;
  readonly #run: (items: readonly In[]) => Promise<readonly Out[]>;
  /** How many items are on their way here. */
  readonly #coming: () => number;
  /** What must be done for the items of a call first. It does not hold the process, so nothing waits for more items because of it. */
  readonly #before: ((items: readonly In[]) => Promise<void>) | undefined;
  #waiting: Waiting<In, Out>[] = [];
  #isRunning = false;
  /** The latest call. */
  #tookMs = 0;
  #callOff: (() => void) | null = null;

  constructor(
    clock: IntakeClock,
    run: (items: readonly In[]) => Promise<readonly Out[]>,
    { coming = () => 0, before }: { coming?: () => number; before?: (items: readonly In[]) => Promise<void> } = {},
  ) {
    this.#clock = clock;
    this.#run = run;
    this.#coming = coming;
    this.#before = before;
  }

  call(items: readonly In[]): Promise<Out[]> {
    if (items.length === 0) return Promise.resolve([]);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ items, resolve, reject });
      this.#next();
    });
  }

  /** A commit of SQLite holds the process for a flush of the disk, so parts that are on their way are waited for. */
  #next(): void {
    if (this.#isRunning || this.#waiting.length === 0) return;
    const gatherMs = Math.min(MAX_GATHER_MS, Math.max(GATHER_MS, 2 * this.#tookMs));
    if (this.#coming() > 0) this.#callOff ??= this.#clock.after(gatherMs, () => void this.#runNow());
    else void this.#runNow();
  }

  async #runNow(): Promise<void> {
    this.#callOff?.();
    this.#callOff = null;
    if (this.#isRunning) return;
    this.#isRunning = true;
    const taken = this.#take();
    const all = taken.flatMap(({ items }) => items);
    let fromMono = this.#clock.mono();
    try {
      if (this.#before) await this.#before(all);
      fromMono = this.#clock.mono();
      const answers = await this.#run(all);
      let from = 0;
      for (const { items, resolve } of taken) resolve(answers.slice(from, (from += items.length)));
    } catch (thrown) {
      for (const { reject } of taken) reject(thrown);
    }
    this.#tookMs = this.#clock.mono() - fromMono;
    this.#isRunning = false;
    this.#next();
  }

  #take(): Waiting<In, Out>[] {
    let [calls, count] = [0, 0];
    for (const { items } of this.#waiting) {
      if (calls > 0 && count + items.length > MAX_TOGETHER) break;
      calls++;
      count += items.length;
    }
    return this.#waiting.splice(0, calls);
  }
}

/** Says how many parts these series of a collection of this kind have. */
export async function announce(
  collections: Collections,
  kind: string,
  id: string,
  expected: Readonly<Record<string, number>>,
): Promise<AnnounceAnswer> {
  const [known] = await collections.known([{ collection: id, series: "", ordinal: 1 }]);
  return known?.kind === kind ? collections.announce(id, expected) : { is: "unknown", series: null };
}

/** Without a blob store there is nowhere to keep a part. */
export function needBlobs(blobs: PartBlobs | null, kind: string): PartBlobs {
  if (blobs) return blobs;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `The collection ${kind} has no blob store for its parts.`,
    'Nothing was stored. Pass one to open() or connect(), for instance `blobs: "./blobs"`.',
    { kind },
  );
}
