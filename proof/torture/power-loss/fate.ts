// What one power loss leaves, drawn from a seed: nothing of what was not synced, all of it, or a part by whole writes, by sectors of
// 512 bytes, or up to a write that is torn at any byte. Space that a file had been given but no data had reached holds zeros or junk.
import type { SeededRandom } from "../../sim/world/random.ts";
import { applied, type Fate, type FileChange, type Inode } from "./disk.ts";

const SECTOR = 512;

/** How a file fares. */
const FORMS = { nothing: 3, everything: 1, writes: 3, sectors: 3, torn: 3 } as const;
type Form = keyof typeof FORMS;

/** The whole disk alike in this share of the states; in the others each file separately. */
const ALIKE = 0.4;

export interface DrawnFate extends Fate {
  readonly text: string;
  /** What is in the file of the shared memory, which is never synced; null: there is none. */
  sharedMemory(): Buffer | null;
}

/** As large as SQLite makes it at first. */
const SHARED_MEMORY_BYTES = 32_768;

export function drawFate(random: SeededRandom): DrawnFate {
  const alike: Form | undefined = random.chance(ALIKE) ? random.weighted(FORMS) : undefined;
  const share = random.pick([0.1, 0.5, 0.9]);
  const junk = random.chance(0.3);
  return {
    text: `${alike ?? "each file separately"}, ${share * 100} % kept${junk ? ", junk where no data was" : ""}`,
    names(count) {
      if (alike === "nothing") return 0;
      return alike === "everything" ? count : random.below(count + 1);
    },
    file: (inode) => leftOf(inode, alike ?? random.weighted(FORMS), share, junk, random),
    sharedMemory: () =>
      random.chance(0.3) ? Buffer.from(random.hex(random.below(SHARED_MEMORY_BYTES + 1)), "hex") : null,
  };
}

/** The worst case: everything that was not synced is gone. */
export const NOTHING_UNSYNCED: DrawnFate = {
  text: "nothing that was not synced",
  names: () => 0,
  file: ({ durable }) => durable,
  sharedMemory: () => null,
};

function leftOf({ durable, unsynced }: Inode, form: Form, share: number, junk: boolean, random: SeededRandom): Buffer {
  if (form === "nothing" || unsynced.length === 0) return durable;
  if (form === "everything") return applied(durable, unsynced);
  const kept = keptOf(unsynced, form, share, random);
  const left = applied(durable, kept);
  // The length of a file is kept apart from its data, and may be ahead of it.
  const whole = applied(durable, unsynced).length;
  const length = random.chance(0.5) ? Math.max(left.length, whole) : left.length;
  if (length === left.length && !junk) return left;
  const bytes = Buffer.alloc(length);
  left.copy(bytes);
  if (junk) fillWithJunk(bytes, durable.length, kept, random);
  return bytes;
}

function keptOf(
  unsynced: readonly FileChange[],
  form: "writes" | "sectors" | "torn",
  share: number,
  random: SeededRandom,
): FileChange[] {
  switch (form) {
    case "writes":
      return unsynced.filter(() => random.chance(share));
    case "sectors":
      return unsynced
        .flatMap((change) => (change.is === "write" ? sectorsOf(change) : [change]))
        .filter(() => random.chance(share));
    case "torn": {
      const last = random.below(unsynced.length);
      const torn = unsynced[last]!;
      const whole = unsynced.slice(0, last);
      if (torn.is === "truncate") return whole;
      return [...whole, { ...torn, bytes: torn.bytes.subarray(0, random.below(torn.bytes.length + 1)) }];
    }
  }
}

function sectorsOf(write: FileChange & { readonly is: "write" }): FileChange[] {
  const sectors: FileChange[] = [];
  const end = write.offset + write.bytes.length;
  for (let from = write.offset; from < end;) {
    const to = Math.min(end, (Math.floor(from / SECTOR) + 1) * SECTOR);
    sectors.push({ ...write, offset: from, bytes: write.bytes.subarray(from - write.offset, to - write.offset) });
    from = to;
  }
  return sectors;
}

/** Only beyond what was durable: a sector that had been written keeps its old or its new content. */
function fillWithJunk(bytes: Buffer, durable: number, kept: readonly FileChange[], random: SeededRandom): void {
  const written = Buffer.alloc(bytes.length);
  for (const change of kept)
    if (change.is === "write") written.fill(1, change.offset, change.offset + change.bytes.length);
  for (let i = durable; i < bytes.length; i++) if (written[i] === 0) bytes[i] = random.below(256);
}
