// The port of message brokers: what collections and consumers of notifications ask of one. A broker carries messages; what they mean is decided
// by the caller. Nothing is acknowledged to the broker before the caller's promise has resolved.
import type { Json } from "../job/json.ts";

/** Where a message goes: a queue by its name, or an exchange with a routing key. */
export type PublishTarget = string | { readonly exchange: string; readonly routingKey: string };

/** Options of a message to be published. */
export interface PublishOptions {
  /** Further headers. Default: none. */
  readonly headers?: Readonly<Record<string, string | number>>;
  /** Default: the one that the caller's job makes, the same in every attempt. */
  readonly messageId?: string;
}

export interface OutgoingMessage {
  readonly target: PublishTarget;
  readonly body: Json | Uint8Array;
  readonly messageId: string;
  readonly headers: Readonly<Record<string, string | number>>;
}

/** Where a producer sends header and parts of a collection. A type, because it goes out as JSON, which no interface fits. */
export type Wire = {
  /** The exchange to which producers publish. */
  readonly exchange: string;
  /** The routing key of headers. */
  readonly header: string;
  /** The routing key of parts. */
  readonly part: string;
  /** The queues behind them. */
  readonly queues: { readonly header: string; readonly part: string };
};

/** A message as a broker delivers it. */
export interface Delivery {
  readonly body: Uint8Array;
  readonly headers: Readonly<Record<string, unknown>>;
  readonly messageId: string | null;
  /** How often it was delivered before. */
  readonly redelivered: number;
  /** Whence a message was dead-lettered, and why; null: it was not. */
  readonly died: { readonly queue: string; readonly reason: string } | null;
}

/**
 * What becomes of a delivery. ack: it is done. requeue: later, or elsewhere. isolate: the broker moves it to the parked queue of its kind, where messages are
 * handled one at a time. keep: it stays in hand, unanswered, until this process ends.
 */
export type Verdict = "ack" | "requeue" | "isolate" | "keep";

/** What a broker delivers to. */
export interface Consumer {
  readonly queue: string;
  /** The kind that it belongs to: while the broker refuses the queues of that kind, it is not consumed. */
  readonly kind: string;
  /** How many deliveries may be in hand at once. */
  readonly prefetch: number;
  /** For this long a message that was delivered before waits for what comes from other queues. Default: by how often that was. */
  readonly restMs?: number;
  /** What came together, so that it can share a transaction. Says what becomes of each; if it rejects, all are requeued after a pause. */
  handle(deliveries: readonly Delivery[]): Promise<readonly Verdict[]>;
}

/** How a kind of collection is wired. */
export interface WiredKind {
  readonly kind: string;
  readonly queues: "shared" | "per-collection";
}

export interface Broker {
  /** Where it is, for messages and logs. Never holds a secret. */
  readonly place: string;
  /** Further queues whose messages become jobs, with the names of their kinds. */
  readonly consumes: readonly { readonly queue: string; readonly kind: { readonly name: string } }[];
  /** Resolves when the broker has confirmed the message and it was routed to a queue. */
  publish(message: OutgoingMessage): Promise<void>;
  /** The names for a collection of this kind. Made, not asked. */
  wire(kind: WiredKind, collection: string): Wire;
  /** Makes the queues of one collection, if it has its own. */
  prepare(kind: WiredKind, collection: string): Promise<void>;
  /** Deletes the queues of one collection, if it has its own. */
  discard(kind: WiredKind, collection: string): Promise<void>;
  /** Consumes until it is stopped. Connects, declares what these kinds need, and does both again after a loss, without a limit. */
  startConsuming(kinds: readonly WiredKind[], news: (news: BrokerNews) => void): Consumption;
  close(): Promise<void>;
}

export interface Consumption {
  /** From now on exactly these are consumed. */
  set(consumers: readonly Consumer[]): void;
  /** Takes nothing more, waits for what is under way, and acknowledges it. */
  stop(): Promise<void>;
}

export interface BrokerNews {
  /** refused: the broker is there, and refuses the queues of one kind, or to let one be consumed; the others are consumed. */
  readonly state: "connected" | "lost" | "refused";
  readonly text: string;
}
