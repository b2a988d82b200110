// The way of parts into the store: what is known is asked once for all that came together, new bytes go to their blobs, then all rows are kept in
// one transaction, and only then is anything answered. Killed anywhere, a repetition finds what is there: the blob has the same name and the
// row the same key.
import { answerPut, type Part, type PartPlace, type PutAnswer } from "../job/collections.ts";
import { ErrorCode, OutliveError } from "../job/errors.ts";
import type { Emitter } from "../job/events.ts";
import { endComplete } from "../recovery/collection-ends.ts";
import type { Collections } from "../stores/collections.ts";
import { blobOf, type PartBlobs, sha256 } from "./blob-names.ts";

/** A part on its way, with its bytes. */
export interface IncomingPart extends PartPlace {
  readonly data: Uint8Array;
}

export class Intake {
  readonly #collections: Collections;
  readonly #blobs: PartBlobs;
  readonly #events: Emitter;
  readonly #checks: Checks;

  constructor(collections: Collections, blobs: PartBlobs, events: Emitter) {
    this.#collections = collections;
    this.#blobs = blobs;
    this.#events = events;
    this.#checks = new Checks(async (ids) => {
      await endComplete(collections, events, ids);
    });
  }

  /** What became of each, in their order. Resolves when all of it is durable. */
  async put(kind: string, incoming: readonly IncomingPart[]): Promise<PutAnswer[]> {
    const known = await this.#collections.known(incoming);
    const answers: PutAnswer[] = [];
    const parts: { readonly at: number; readonly part: Part; readonly data: Uint8Array }[] = [];
    for (const [at, { data, ...place }] of incoming.entries()) {
      const hash = sha256(data);
      answers[at] = answerPut(known[at]!, { ordinal: place.ordinal, sha256: hash });
      if (answers[at] !== "accepted") continue;
      const part = { ...place, blob: blobOf(kind, place, hash), bytes: data.length, sha256: hash };
      parts.push({ at, part, data });
    }
    if (parts.length > 0) {
      await Promise.all(
        parts.map(({ part, data }) => this.#blobs.put(part.blob, data, { size: part.bytes, sha256: part.sha256 })),
      );
      const kept = await this.#collections.put(parts.map(({ part }) => part));
      for (const [i, { at }] of parts.entries()) answers[at] = kept[i]!;
      await this.#dropUnused(parts.filter((_, i) => kept[i] === "conflict" || kept[i] === "unknown"));
    }
    this.#tell(kind, incoming, answers);
    return answers;
  }

  /** Looks whether these collections are complete now. A call during a check shares the next one. */
  check(ids: readonly string[]): Promise<void> {
    return this.#checks.check(ids);
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

/** Collects what is asked for while a check runs into the next one. */
class Checks {
  readonly #run: (ids: readonly string[]) => Promise<void>;
  #next = new Set<string>();
  #waiting: Promise<void> | null = null;
  #running: Promise<void> = Promise.resolve();

  constructor(run: (ids: readonly string[]) => Promise<void>) {
    this.#run = run;
  }

  check(ids: readonly string[]): Promise<void> {
    if (ids.length === 0) return Promise.resolve();
    for (const id of ids) this.#next.add(id);
    this.#waiting ??= this.#running.then(() => {
      const now = [...this.#next];
      this.#next = new Set();
      this.#waiting = null;
      const running = this.#run(now);
      this.#running = running.catch(() => {});
      return running;
    });
    return this.#waiting;
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
