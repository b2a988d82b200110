// The way of parts into the store: what is known is asked for, new bytes go to their blobs, then their rows are kept, and only then does a put
// resolve. Blobs are written as parts come; the two calls of the store are shared by all parts that wait for them. Killed anywhere, a repetition
// finds what is there: the blob has the same name and the row the same key.
import { answerPut, type KnownPlace, type Part, type PartPlace, type PutAnswer } from "../job/collections.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import type { Clock } from "../job/time.ts";
import { endComplete } from "../recovery/collection-ends.ts";
import type { Collections } from "../stores/collections.ts";
import { blobOf, type PartBlobs, sha256 } from "./blob-names.ts";

/** A part on its way, with its bytes. */
export interface IncomingPart extends PartPlace {
  readonly data: Uint8Array;
}

/** Parts of one call of the store. */
const MAX_TOGETHER = 500;
/** How long rows wait for others whose blobs are being written. */
const GATHER_MS = 5;

export class Intake {
  readonly #blobs: PartBlobs;
  readonly #events: Emitter;
  readonly #known: Together<PartPlace, KnownPlace | null>;
  readonly #keep: Together<Part, PutAnswer>;
  readonly #checks: Together<string, string>;
  /** Blobs that are being written. */
  #writing = 0;

  constructor(collections: Collections, blobs: PartBlobs, events: Emitter, clock: Pick<Clock, "after">) {
    this.#blobs = blobs;
    this.#events = events;
    this.#known = new Together(clock, (places) => collections.known(places));
    this.#keep = new Together(
      clock,
      (parts) => collections.put(parts),
      () => this.#writing,
    );
    this.#checks = new Together(clock, async (ids) => {
      await endComplete(collections, events, [...new Set(ids)]);
      return ids;
    });
  }

  /** What became of each, in their order. Resolves when all of it is durable. */
  async put(kind: string, incoming: readonly IncomingPart[]): Promise<PutAnswer[]> {
    const asked = this.#known.call(
      incoming.map(({ collection, series, ordinal }) => ({ collection, series, ordinal })),
    );
    // While the store looks. A call that fails is reported below.
    asked.catch(() => {});
    const hashes = incoming.map(({ data }) => sha256(data));
    const known = await asked;
    const answers: PutAnswer[] = [];
    const parts: { readonly at: number; readonly part: Part; readonly data: Uint8Array }[] = [];
    for (const [at, { data, ...place }] of incoming.entries()) {
      const hash = hashes[at]!;
      answers[at] = answerPut(known[at]!, { ordinal: place.ordinal, sha256: hash });
      if (answers[at] !== "accepted") continue;
      const part = { ...place, blob: blobOf(kind, place, hash), bytes: data.length, sha256: hash };
      parts.push({ at, part, data });
    }
    if (parts.length > 0) {
      await Promise.all(parts.map(({ part, data }) => this.#store(part, data)));
      const kept = await this.#keep.call(parts.map(({ part }) => part));
      for (const [i, { at }] of parts.entries()) answers[at] = kept[i]!;
      await this.#dropUnused(parts.filter((_, i) => kept[i] === "conflict" || kept[i] === "unknown"));
    }
    this.#tell(kind, incoming, answers);
    return answers;
  }

  async #store({ blob, bytes, sha256: hash }: Part, data: Uint8Array): Promise<void> {
    this.#writing++;
    try {
      await this.#blobs.put(blob, data, { size: bytes, sha256: hash, isHashed: true });
    } finally {
      this.#writing--;
    }
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
  readonly #clock: Pick<Clock, "after">;
  readonly #run: (items: readonly In[]) => Promise<readonly Out[]>;
  /** How many items are on their way here. */
  readonly #coming: () => number;
  #waiting: Waiting<In, Out>[] = [];
  #count = 0;
  #isRunning = false;
  #callOff: (() => void) | null = null;

  constructor(
    clock: Pick<Clock, "after">,
    run: (items: readonly In[]) => Promise<readonly Out[]>,
    coming: () => number = () => 0,
  ) {
    this.#clock = clock;
    this.#run = run;
    this.#coming = coming;
  }

  call(items: readonly In[]): Promise<Out[]> {
    if (items.length === 0) return Promise.resolve([]);
    return new Promise((resolve, reject) => {
      this.#waiting.push({ items, resolve, reject });
      this.#count += items.length;
      this.#next();
    });
  }

  /** A commit of SQLite holds the process for a flush of the disk, so the parts that are nearly there are waited for, up to half of all. */
  #next(): void {
    if (this.#isRunning || this.#waiting.length === 0) return;
    if (this.#coming() > this.#count) this.#callOff ??= this.#clock.after(GATHER_MS, () => void this.#runNow());
    else void this.#runNow();
  }

  async #runNow(): Promise<void> {
    this.#callOff?.();
    this.#callOff = null;
    if (this.#isRunning) return;
    this.#isRunning = true;
    const taken = this.#take();
    try {
      const answers = await this.#run(taken.flatMap(({ items }) => items));
      let from = 0;
      for (const { items, resolve } of taken) resolve(answers.slice(from, (from += items.length)));
    } catch (thrown) {
      for (const { reject } of taken) reject(thrown);
    }
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
    this.#count -= count;
    return this.#waiting.splice(0, calls);
  }
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
