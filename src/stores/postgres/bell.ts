// Wake-ups between processes: NOTIFY on one channel per schema, in transactions of their own, never in a hot one, and never more
// than one on its way. A missed ring costs one poll interval, no more.
import type { CallOff, Clock } from "../../core/clock.ts";
import type { Connection } from "./connection.ts";
import { bellChannel } from "./schema.ts";

/** Rings that follow each other faster than this are one. */
const APART_MS = 10;
/** After a session that listened was lost. */
const AGAIN_MS = 500;

type Listening = Awaited<ReturnType<Connection["dedicated"]>>;

export class Bell {
  readonly #connection: Connection;
  readonly #clock: Pick<Clock, "after">;
  readonly #channel: string;
  readonly #listens: boolean;
  readonly #listeners = new Set<() => void>();
  #ringing = false;
  #again = false;
  #listening: Promise<Listening | undefined> | undefined;
  #retry: CallOff | undefined;
  #closed = false;

  /** Without `listens` somebody else does, and says so by `heard`. */
  constructor(
    connection: Connection,
    clock: Pick<Clock, "after">,
    { listens = true }: { readonly listens?: boolean } = {},
  ) {
    this.#listens = listens;
    this.#connection = connection;
    this.#clock = clock;
    this.#channel = bellChannel(connection.schema);
  }

  ring(): void {
    if (this.#closed) return;
    if (this.#ringing) {
      this.#again = true;
      return;
    }
    this.#ringing = true;
    // The others poll, should it fail.
    void this.#connection
      .run("SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, '')", [this.#channel])
      .catch(() => {})
      .then(() => this.#clock.after(APART_MS, () => this.#rung()));
  }

  onRing(listener: () => void): () => void {
    this.#listeners.add(listener);
    if (this.#listens) this.#listening ??= this.#listen();
    return () => void this.#listeners.delete(listener);
  }

  /** Somebody rang. */
  heard(): void {
    for (const listener of this.#listeners) listener();
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#listeners.clear();
    this.#retry?.();
    const client = await this.#listening;
    client?.release(true);
  }

  #rung(): void {
    this.#ringing = false;
    if (!this.#again) return;
    this.#again = false;
    this.ring();
  }

  async #listen(): Promise<Listening | undefined> {
    try {
      const client = await this.#connection.dedicated();
      client.on("notification", () => this.heard());
      client.once("error", () => this.#lost(client));
      await client.query(`LISTEN "${this.#channel}"`);
      return client;
    } catch {
      this.#listenLater();
      return undefined;
    }
  }

  #lost(client: Listening): void {
    client.release(true);
    this.#listenLater();
  }

  #listenLater(): void {
    this.#listening = undefined;
    if (this.#closed) return;
    this.#retry = this.#clock.after(AGAIN_MS, () => {
      this.#listening ??= this.#listen();
    });
  }
}
