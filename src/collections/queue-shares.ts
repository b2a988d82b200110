// Which queues of open collections a process consumes where each collection has its own, and how many messages of each. A broker counts what it has delivered
// for each queue, so the room is divided before anything is consumed: all queues together are within the memory of their kind. If there are more collections
// than room, they take turns.

/** A queue that brings messages is kept for this many rounds while others wait for theirs. */
const MAX_ROUNDS = 25;

/** The queues of these collections, and how many parts and headers of each may be in hand. */
export interface Share {
  readonly ids: readonly string[];
  readonly parts: number;
  readonly headers: number;
  /** Others wait for their turn. */
  readonly areMore: boolean;
}

export class QueueShares {
  readonly #room: number;
  #round = 0;
  /** The rounds for which each of the present ones has been there, one after the other. */
  #present = new Map<string, number>();
  /** The latest round in which each open collection was present. */
  #latest = new Map<string, number>();

  /** `room`: how many messages may be in hand. */
  constructor(room: number) {
    this.#room = room;
  }

  /** The share of the next round. `isBusy`: its queues have brought something in the round before. */
  next(open: readonly string[], isBusy: (id: string) => boolean): Share {
    this.#round++;
    // One place of each is for a header.
    const places = Math.max(1, Math.floor(this.#room / 2));
    const ids = open.length <= places ? open : this.#chosen(open, places, isBusy);
    this.#latest = new Map(open.flatMap((id) => (this.#latest.has(id) ? [[id, this.#latest.get(id)!]] : [])));
    for (const id of ids) this.#latest.set(id, this.#round);
    this.#present = new Map(ids.map((id) => [id, (this.#present.get(id) ?? 0) + 1]));
    const each = Math.floor(this.#room / Math.max(1, ids.length)) - 1;
    return { ids, parts: powerOfTwo(Math.max(1, each)), headers: 1, areMore: ids.length < open.length };
  }

  /** Those that bring messages stay for a while. The others are those that have waited longest. */
  #chosen(open: readonly string[], places: number, isBusy: (id: string) => boolean): string[] {
    const stays = (id: string): boolean => {
      const rounds = this.#present.get(id);
      return rounds !== undefined && rounds < MAX_ROUNDS && isBusy(id);
    };
    const staying = open.filter(stays).slice(0, places);
    const waited = (id: string): number => this.#latest.get(id) ?? 0;
    const others = open.filter((id) => !staying.includes(id)).toSorted((a, b) => waited(a) - waited(b));
    return [...staying, ...others.slice(0, places - staying.length)];
  }
}

/** The largest that is not above it, so that a share changes seldom: a change begins the consumption of each queue again. */
function powerOfTwo(bound: number): number {
  return 2 ** Math.floor(Math.log2(bound));
}
