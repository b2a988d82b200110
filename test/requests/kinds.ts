// The requests of the tests that kill processes, as their parent and their children see them.
import { appendFileSync } from "node:fs";
import { job } from "../../src/index.ts";
import { request } from "../../src/requests.ts";

const receiver = process.env["OUTLIVE_TEST_RECEIVER"] ?? "http://127.0.0.1:1";
const effects = process.env["OUTLIVE_TEST_EFFECTS"];

const COMMON = {
  addresses: "any",
  response: "text",
  retry: { attempts: 20, backoff: { base: "10ms", max: "50ms" } },
} as const;
const send = (kind: string) => (input: unknown) => ({ url: `${receiver}/${kind}`, json: input });

export const again = request("again", { ...COMMON, method: "POST", ifUnknown: "resend", send: send("again") });
export const once = request("once", { ...COMMON, method: "POST", ifUnknown: "fail", send: send("once") });
export const asking = request("asking", { ...COMMON, method: "POST", ifUnknown: "ask", send: send("asking") });

for (const kind of [again, once, asking]) {
  kind.onResponse(({ requestId, body }) => say(`response ${requestId} ${body}`));
  kind.onError(({ requestId, is }) => say(`error ${requestId} ${is}`));
}
asking.onUnknown(({ requestId }) => {
  say(`unknown ${requestId}`);
  return { status: 200, body: "found" };
});

/** Two POSTs of its own that must not be sent twice; the second one is tried three times, as an SDK would. */
export const calling = job("calling", { retry: COMMON.retry });
calling.handle(async (_, run) => {
  const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
  await fetch(`${receiver}/first`, { method: "POST", body: "a" });
  for (let tries = 0; tries < 3; tries++) {
    try {
      await fetch(`${receiver}/second`, { method: "POST", body: "b" });
      return say(`called ${run.id}`);
    } catch {}
  }
});

function say(what: string): void {
  if (effects !== undefined) appendFileSync(effects, `${what}\n`);
}

export const KINDS = [again, once, asking, calling];
export const HEARTBEAT = { interval: "200ms", lease: "20s", probe: "50ms", sweep: "1s" } as const;
