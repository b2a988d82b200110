// All that a program was promised up to one moment, gathered from its words: what must be found in the store from then on,
// whatever happens to the process or to the machine.
import type { Word } from "./word.ts";

export interface Promised {
  readonly opened: boolean;
  readonly enqueued: ReadonlySet<string>;
  /** Jobs with a row of the user's from the same transaction. */
  readonly ordered: ReadonlySet<string>;
  /** Groups of ids of which all or none are there. */
  readonly together: readonly (readonly string[])[];
  readonly claimed: ReadonlyMap<string, { readonly epoch: number; readonly fence: number }>;
  readonly steps: ReadonlyMap<string, ReadonlySet<string>>;
  readonly ended: ReadonlyMap<string, "succeeded" | "cancelled">;
  readonly incidents: ReadonlySet<string>;
  /** Retention may have taken what has ended. */
  readonly purging: boolean;
  /** How many answers these are. */
  readonly count: number;
}

export function promisedBy(words: readonly Word[]): Promised {
  const enqueued = new Set<string>();
  const ordered = new Set<string>();
  const together: (readonly string[])[] = [];
  const claimed = new Map<string, { epoch: number; fence: number }>();
  const steps = new Map<string, Set<string>>();
  const ended = new Map<string, "succeeded" | "cancelled">();
  const incidents = new Set<string>();
  let opened = false;
  let purging = false;
  let count = 0;
  for (const word of words) {
    if (word.said !== "adding" && word.said !== "purging") count++;
    switch (word.said) {
      case "opened":
        opened = true;
        break;
      case "adding":
        together.push(word.ids);
        break;
      case "enqueued":
        for (const id of word.ids) enqueued.add(id);
        break;
      case "ordered":
        enqueued.add(word.id);
        ordered.add(word.id);
        break;
      case "claimed": {
        const { id, epoch, fence } = word;
        const before = claimed.get(id);
        claimed.set(id, { epoch: Math.max(epoch, before?.epoch ?? 0), fence: Math.max(fence, before?.fence ?? 0) });
        break;
      }
      case "step":
        if (!steps.has(word.id)) steps.set(word.id, new Set());
        steps.get(word.id)!.add(word.name);
        break;
      case "committed":
      case "settled":
        ended.set(word.id, "succeeded");
        break;
      case "cancelled":
        ended.set(word.id, "cancelled");
        break;
      case "recovered":
        incidents.add(word.incident);
        break;
      case "purging":
        purging = true;
        break;
    }
  }
  return { opened, enqueued, ordered, together, claimed, steps, ended, incidents, purging, count };
}
