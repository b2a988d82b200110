// The exchange and the queues, by name and with their arguments: long-lived ones that all collections of a kind share, or two for each collection.
// Quorum queues: they confirm after a flush to the disk, and count deliveries. Nothing expires: a queue that was unused for long may hold data.
import { ErrorCode, OutliveError } from "../../job/errors.ts";
import type { WiredKind, Wire } from "../../stores/broker.ts";
import { type Channel, deadline } from "./connection.ts";

export const EXCHANGE = "outlive.collections";
/** After this many deliveries the broker dead-letters a message itself. We move it sooner. */
const DELIVERY_LIMIT = 50;
/** Of the parked queue. RabbitMQ 4 would drop a message after 20. */
const NO_LIMIT = 1_000_000_000;

export function queuesOf(kind: string): { readonly header: string; readonly part: string; readonly parked: string } {
  return { header: `outlive.${kind}.header`, part: `outlive.${kind}.part`, parked: `outlive.${kind}.parked` };
}

export function wireOf({ kind, queues }: WiredKind, collection: string): Wire {
  if (queues === "shared") {
    const { header, part } = queuesOf(kind);
    return { exchange: EXCHANGE, header: `${kind}.header`, part: `${kind}.part`, queues: { header, part } };
  }
  const own = { header: `transaction-${collection}-header`, part: `transaction-${collection}-payload` };
  return { exchange: "", ...own, queues: own };
}

/** Names are made of kinds and ids, which may hold what a routing key or a queue can't. */
export function assertWired({ kind, queues }: WiredKind, collection?: string): void {
  const isGood = /^[A-Za-z0-9_-]{1,100}$/;
  const wrong = !isGood.test(kind)
    ? kind
    : queues === "per-collection" && collection && !isGood.test(collection)
      ? collection
      : null;
  if (wrong === null) return;
  throw new OutliveError(
    ErrorCode.optionInvalid,
    `${JSON.stringify(wrong)} can't be a part of the name of a queue.`,
    "With a broker, kinds (and ids, if each collection has its own queues) have 1 to 100 letters, digits, - and _.",
    { kind, collection },
  );
}

/** What all collections of a kind need. Repeating it changes nothing. */
export async function declareKind(channel: Channel, shown: string, wired: WiredKind): Promise<void> {
  assertWired(wired);
  const { kind } = wired;
  const { header, part, parked } = queuesOf(kind);
  const call = <T>(doing: string, made: Promise<T>): Promise<T> => deadline(made, shown, doing);
  await call(
    `declaring the queue ${parked}`,
    channel.assertQueue(parked, {
      durable: true,
      arguments: { "x-queue-type": "quorum", "x-delivery-limit": NO_LIMIT },
    }),
  );
  if (wired.queues === "per-collection") return;
  await call(`declaring the exchange ${EXCHANGE}`, channel.assertExchange(EXCHANGE, "topic", { durable: true }));
  for (const [queue, key] of [
    [header, `${kind}.header`],
    [part, `${kind}.part`],
  ] as const) {
    await call(`declaring the queue ${queue}`, channel.assertQueue(queue, queueOptions(parked)));
    await call(`binding the queue ${queue}`, channel.bindQueue(queue, EXCHANGE, key));
  }
}

/** The queues of one collection. */
export async function declareOwn(channel: Channel, shown: string, wired: WiredKind, collection: string): Promise<void> {
  assertWired(wired, collection);
  if (wired.queues === "shared") return;
  const { queues } = wireOf(wired, collection);
  for (const queue of [queues.header, queues.part])
    await deadline(
      channel.assertQueue(queue, queueOptions(queuesOf(wired.kind).parked)),
      shown,
      `declaring the queue ${queue}`,
    );
}

export async function deleteOwn(channel: Channel, shown: string, wired: WiredKind, collection: string): Promise<void> {
  if (wired.queues === "shared") return;
  const { queues } = wireOf(wired, collection);
  for (const queue of [queues.header, queues.part])
    await deadline(channel.deleteQueue(queue), shown, `deleting the queue ${queue}`);
}

function queueOptions(parked: string): { durable: true; arguments: Record<string, string | number> } {
  return {
    durable: true,
    arguments: {
      "x-queue-type": "quorum",
      "x-delivery-limit": DELIVERY_LIMIT,
      "x-dead-letter-exchange": "",
      "x-dead-letter-routing-key": parked,
      "x-dead-letter-strategy": "at-least-once",
      // Dead letters are at least once only with this.
      "x-overflow": "reject-publish",
    },
  };
}
