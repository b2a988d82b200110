// The requests that the rig's processes send, to the receiver in the rig's own process.
import { request, type RequestOptions, type ResponseOf } from "../../../src/requests.ts";

const receiver = process.env["OUTLIVE_REQUESTS_RECEIVER"] ?? "http://127.0.0.1:1";
const inFlight = Number(process.env["OUTLIVE_REQUESTS_IN_FLIGHT"] ?? 100);
/** The control: a kind says that it is marked, and is not. */
const planted = process.env["OUTLIVE_REQUESTS_PLANT"] === "resend";

export interface Input {
  readonly n: number;
  /** Of which queue, for those in order. */
  readonly queue?: number;
}

const LOCAL = {
  addresses: "any",
  retry: { attempts: 1_000, backoff: { base: "10ms", max: "100ms" } },
  timeouts: { total: "30s" },
} as const satisfies RequestOptions;

const sent = (kind: string) => (input: Input) => ({
  url: `${receiver}/${kind}/${input.queue ?? 0}/${input.n}`,
  json: input,
});

/** Sent again, whatever happened. */
export const again = request<never>("again", {
  ...LOCAL,
  method: "POST",
  ifUnknown: "resend",
  send: sent("again"),
});
/** Never sent twice. */
export const once = request<never>("once", {
  ...LOCAL,
  method: "POST",
  ifUnknown: planted ? "resend" : "fail",
  send: sent("once"),
});
/** Sent twice only if the one who was asked said so. */
export const asking = request<never>("asking", {
  ...LOCAL,
  method: "POST",
  ifUnknown: "ask",
  send: sent("asking"),
});
/** One after the other in each queue. */
export const ordered = request<never>("ordered", {
  ...LOCAL,
  method: "PUT",
  send: sent("ordered") as never,
  key: ({ queue }: Input) => `queue ${queue}`,
  order: "strict",
} as never);

for (const kind of [again, once, asking, ordered]) {
  kind.onResponse((response) => void (response as unknown as ResponseOf).status);
  kind.onError(() => {});
}

/** Looks whether the receiver has it. What the dead process had written may still be on its way: then it says "resend", and the receiver knows. */
asking.onUnknown(async ({ input }) => {
  const { n } = input as Input;
  const response = await fetch(`${receiver}/seen/${n}`, { method: "POST" });
  const { seen } = (await response.json()) as { seen: boolean };
  return seen ? { status: 200, body: "seen" } : n % 2 === 0 ? "resend" : "fail";
});

export const KINDS = [again, once, asking, ordered];
export const CONCURRENCY = {
  again: inFlight,
  once: Math.ceil(inFlight / 2),
  asking: Math.ceil(inFlight / 2),
  ordered: Math.ceil(inFlight / 2),
};
