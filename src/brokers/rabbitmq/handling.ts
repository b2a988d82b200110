// What becomes of messages in hand: how often they were delivered, how long they are tried, and what the broker is answered.
import type { ConsumeMessage, GetMessage } from "amqplib";
import type { Consumer, Delivery, Verdict } from "../../stores/broker.ts";
import { after, type Channel } from "./connection.ts";

/** Between two attempts to handle what the store or the blob store refused. */
const MAX_HANDLE_PAUSE_MS = 5_000;
/** What failed for this long goes to another process, if there is one, at its first deliveries. */
const KEEP_IN_HAND_MS = 30_000;
/** So many deliveries may be spent on that. A long outage must not use up the count, which is there for messages that end processes. */
const HANDED_ON = 3;
/** Later on it is kept for as long as a broker lets it be: RabbitMQ closes the channel of a delivery that is not acknowledged for 30 minutes. */
const KEEP_LONG_MS = 20 * 60_000;

/** Pushed by the broker, or asked for. */
type Brought = ConsumeMessage | GetMessage;

/** Null: these could not be handled for so long that others should try, or `hurry` ended the attempts. */
export async function handled(
  consumer: Pick<Consumer, "handle">,
  deliveries: readonly Delivery[],
  hurry: AbortSignal,
): Promise<readonly Verdict[] | null> {
  const since = performance.now();
  const keepMs = keptInHandMs(Math.max(...deliveries.map(({ redelivered }) => redelivered)));
  for (let pauseMs = 50; ; pauseMs = Math.min(MAX_HANDLE_PAUSE_MS, pauseMs * 2)) {
    try {
      return await consumer.handle(deliveries);
    } catch {
      // The caller has said what failed.
      if (hurry.aborted || performance.now() - since > keepMs) return null;
      await after(pauseMs, hurry);
    }
  }
}

/** How long a delivery that can't be handled is kept, by how often it was delivered before. */
export function keptInHandMs(redelivered: number): number {
  return redelivered < HANDED_ON ? KEEP_IN_HAND_MS : KEEP_LONG_MS;
}

/** An acknowledgement on a channel that died is refused: its message comes again. */
export function answer(channel: Channel, message: Brought, verdict: Exclude<Verdict, "keep">): void {
  try {
    if (verdict === "ack") channel.ack(message);
    else channel.nack(message, false, verdict === "requeue");
  } catch {
    // The channel is closed.
  }
}

export function timesDelivered({ fields, properties }: Brought): number {
  const counted = Number(properties.headers?.["x-delivery-count"]);
  return Number.isInteger(counted) && counted > 0 ? counted : fields.redelivered ? 1 : 0;
}

export function deliveryOf(message: Brought, times: number): Delivery {
  const headers = (message.properties.headers ?? {}) as Record<string, unknown>;
  const [death] = (headers["x-death"] ?? []) as readonly { queue?: unknown; reason?: unknown }[];
  const id: unknown = message.properties.messageId;
  return {
    body: message.content,
    headers,
    messageId: typeof id === "string" && id !== "" ? id : null,
    redelivered: times,
    died: death ? { queue: String(death.queue), reason: String(death.reason) } : null,
  };
}
