// How far admission has come at the doors of keys. It leaves the entries of admitted jobs behind (keys.ts), and would read over them again at every visit of
// the door. What is kept here is in memory, per connection, and only says where to begin to read, and which entries follow: up to this entry all others of the
// door are stale. Whatever could make one of those valid again forgets it: an entry that is written in front of it, a rollback, and any commit of another connection.
// Without it the first job of a door cost 3.9 of the 19 us that the statements of a job with a key take, with it 1.3.
import type { Database } from "./database.ts";

/** All entries of the door with a higher rank, or with this rank and no later a job, are stale. */
export interface DoorHead {
  readonly door: number;
  readonly rank: number;
  job: number;
  /** How many of them were left behind since stale entries were removed. */
  stale: number;
  /** The limit of the job that was admitted last, if it has one key and counts against nothing else: those behind it most likely have the same. Null: it has others. */
  readonly limit: string | null;
  /** The next entries of this rank, as far as they were read, from this place on. */
  next: number[];
  from: number;
  /** No others of this rank follow. */
  whole: boolean;
}

/** Memory is bounded; a door that is forgotten is read from its beginning once. */
const MAX_DOORS = 20_000;
/** Of entries that are added to a door whose end is known. Others are read when these are taken. */
const MAX_NEXT = 64;

export class DoorHeads {
  readonly #heads = new Map<number, DoorHead>();
  #dataVersion = -1;
  /** How many jobs a door with room admits. */
  #perDoor = 1;

  /** At the beginning of an admission, inside its transaction. */
  begin(db: Database): void {
    const [version] = db.sqlArrays("PRAGMA data_version").get() as unknown as [number];
    if (version !== this.#dataVersion || this.#heads.size > MAX_DOORS) this.#heads.clear();
    this.#dataVersion = version;
  }

  of(door: number): DoorHead | undefined {
    return this.#heads.get(door);
  }

  /** Everything up to this entry is stale now. */
  passed(head: DoorHead): void {
    this.#heads.set(head.door, head);
  }

  get perDoor(): number {
    return this.#perDoor;
  }

  /** So many doors were visited, and so many jobs admitted. */
  gave(doors: number, jobs: number): void {
    if (doors > 0) this.#perDoor = Math.max(1, (this.#perDoor + jobs / doors) / 2);
  }

  /** An entry is written, or becomes valid again. */
  entered(door: number, rank: number, job: number): void {
    const head = this.#heads.get(door);
    if (head === undefined || rank < head.rank) return;
    if (rank > head.rank || job <= head.job) return void this.#heads.delete(door);
    const last = head.from < head.next.length ? head.next.at(-1)! : null;
    if (head.whole && job > (last ?? head.job)) {
      head.next.splice(0, head.from);
      head.from = 0;
      if (head.next.length < MAX_NEXT) head.next.push(job);
      else head.whole = false;
    } else if (head.whole || job < (last ?? 0)) [head.next, head.from, head.whole] = [[], 0, false];
  }

  forget(door: number): void {
    this.#heads.delete(door);
  }

  /** After a rollback. */
  clear(): void {
    this.#heads.clear();
  }
}

const ofConnections = new WeakMap<Database, DoorHeads>();

export function doorHeads(db: Database): DoorHeads {
  let heads = ofConnections.get(db);
  if (!heads) ofConnections.set(db, (heads = new DoorHeads()));
  return heads;
}
