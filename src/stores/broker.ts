// The port of message brokers: what collections and consumers of notifications ask of one. A broker carries messages; what they mean is decided
// by the caller. Nothing is acknowledged to the broker before the caller's promise has resolved.
import type { NamedKind } from "../job/contract.ts";
import type { Json } from "../job/json.ts";

/** Where a message goes: a queue by its name, or an exchange with a routing key. */
export type PublishTarget =
  | string
  | {
      /** The name of the exchange. */
      readonly exchange: string;
      /** The routing key. */
      readonly routingKey: string;
    };

/** Options of a message to be published. */
export interface PublishOptions {
  /** Further headers. Default: none. */
  readonly headers?: Readonly<Record<string, string | number>>;
  /** Its id. Default: the one that the caller's job makes, the same in every attempt. */
  readonly messageId?: string;
}

/** A message to be published. */
export interface OutgoingMessage {
  /** Where it goes. */
  readonly target: PublishTarget;
  /** Its body. */
  readonly body: Json | Uint8Array;
  /** Its message id. */
  readonly messageId: string;
  /** Its headers. */
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
  readonly queues: {
    /** The queue of headers. */
    readonly header: string;
    /** The queue of parts. */
    readonly part: string;
  };
};

/** A message as a broker delivers it. */
export interface Delivery {
  /** Its body. */
  readonly body: Uint8Array;
  /** Its headers. */
  readonly headers: Readonly<Record<string, unknown>>;
  /** Its message id; null: it has none. */
  readonly messageId: string | null;
  /** How often it was delivered before. */
  readonly redelivered: number;
  /** Where and why it was dead-lettered; null: it was not. */
  readonly died: {
    /** The queue that it was in. */
    readonly queue: string;
    /** The broker's reason. */
    readonly reason: string;
  } | null;
}

/**
 * What becomes of a delivery. ack: it is done. requeue: later, or elsewhere. isolate: the broker moves it to the parked queue of its kind, where messages are
 * handled one at a time. keep: it stays unacknowledged until this process ends.
 */
export type Verdict = "ack" | "requeue" | "isolate" | "keep";

/** What a broker delivers to. */
export interface Consumer {
  /** The name of the queue. */
  readonly queue: string;
  /** The kind that it belongs to: while the broker refuses the queues of that kind, it is not consumed. */
  readonly kind: string;
  /** How many deliveries may be unacknowledged at once. */
  readonly prefetch: number;
  /** Its messages are taken one at a time, each when it can be handled at once. Default: the broker brings as many as `prefetch` allows. */
  readonly pulls?: {
    /** For this long after the start nothing is taken: what comes from other queues goes first. */
    readonly restMs: number;
    /** Takes and handles one when the process has nothing else that might end it. Null: it was called off before. */
    whenFree<T>(work: () => Promise<T>): Promise<T | null>;
  };
  /** What came together, so that it can share a transaction. Says what becomes of each; if it rejects, all are requeued after a pause. */
  handle(deliveries: readonly Delivery[]): Promise<readonly Verdict[]>;
}

/** How a kind of collection is wired. */
export interface WiredKind {
  /** The kind's name. */
  readonly kind: string;
  /** Whether its collections share queues. */
  readonly queues: "shared" | "per-collection";
}

/** A queue whose messages become jobs. */
export interface ConsumedQueue {
  /** The name of the queue. */
  readonly queue: string;
  /** The kind of the jobs. */
  readonly kind: NamedKind;
  /** How many of its messages one process holds. */
  readonly prefetch: number;
}

/** A message broker. Made by `rabbitmq()`. */
export interface Broker {
  /** Where it is, for messages and logs. Never holds a secret. */
  readonly place: string;
  /** Further queues whose messages become jobs, with the names of their kinds. */
  readonly consumes: readonly ConsumedQueue[];
  /** Resolves when the broker has confirmed the message and it was routed to a queue. */
  publish(message: OutgoingMessage): Promise<void>;
  /** Where the producer of a collection sends. Asks no server. */
  wire(kind: WiredKind, collection: string): Wire;
  /** Makes the queues of one collection, if it has its own. */
  prepare(kind: WiredKind, collection: string): Promise<void>;
  /** Deletes the queues of one collection, if it has its own. */
  discard(kind: WiredKind, collection: string): Promise<void>;
  /** Consumes until it is stopped. Connects, declares what these kinds need, and does both again after a loss, without a limit. */
  startConsuming(kinds: readonly WiredKind[], news: (news: BrokerNews) => void): Consumption;
  /** Closes its connections. Messages that are not acknowledged are delivered again. */
  close(): Promise<void>;
}

/** What consumes until it is stopped. */
export interface Consumption {
  /** From now on exactly these are consumed. */
  set(consumers: readonly Consumer[]): void;
  /** Takes nothing more, waits for what is under way, and acknowledges it. */
  stop(): Promise<void>;
}

/** A change of the connection to a broker. */
export interface BrokerNews {
  /** refused: the broker is there, and refuses the queues of one kind, or to let one be consumed; the others are consumed. */
  readonly state: "connected" | "lost" | "refused";
  /** What happened, in words. */
  readonly text: string;
}
