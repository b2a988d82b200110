// Every case of what came back, and what is decided: pure, as tables.
import assert from "node:assert/strict";
import { test } from "node:test";
import { decisionAfterDeath, knownMark, sentMark, unknownSending } from "../../src/job/requests.ts";
import { type Came, type Decision, decide, retryAfterMs } from "../../src/requests/outcome.ts";

const answer = (status: number, retryAfter: number | null = null): Came => ({
  is: "answer",
  status,
  accepted: status >= 200 && status < 300,
  retryAfterMs: retryAfter,
});
const then = (came: Came, ifUnknown: "resend" | "ask" | "fail", key = true): Decision["then"] =>
  decide(came, ifUnknown, { statuses: [418] }, key).then;

/** Status: what "resend" does, what "ask" and "fail" do. */
const BY_STATUS: Readonly<Record<number, readonly [Decision["then"], Decision["then"]]>> = {
  200: ["respond", "respond"],
  204: ["respond", "respond"],
  301: ["fail", "fail"],
  400: ["fail", "fail"],
  401: ["fail", "fail"],
  404: ["fail", "fail"],
  408: ["retry", "fail"],
  409: ["retry", "retry"],
  410: ["fail", "fail"],
  418: ["retry", "retry"],
  422: ["fail", "fail"],
  425: ["retry", "retry"],
  429: ["retry", "retry"],
  500: ["retry", "fail"],
  501: ["fail", "fail"],
  502: ["retry", "unknown"],
  503: ["retry", "retry"],
  504: ["retry", "unknown"],
  507: ["retry", "fail"],
};

test("what each status leads to, by policy", () => {
  for (const [status, [resend, others]] of Object.entries(BY_STATUS)) {
    const came = answer(Number(status));
    assert.deepEqual([then(came, "resend"), then(came, "ask"), then(came, "fail")], [resend, others, others], status);
  }
  assert.equal(then(answer(409), "resend", false), "fail", "409 without an idempotency key is an answer");
});

test("what was never sent is tried again under every policy, and what was cut off after sending is unknown", () => {
  for (const policy of ["resend", "ask", "fail"] as const) {
    assert.equal(then({ is: "unsent", fault: "network", message: "" }, policy), "retry");
    const cut = then({ is: "cut", fault: "timeout", message: "" }, policy);
    assert.equal(cut, policy === "resend" ? "retry" : "unknown");
    assert.equal(then({ is: "refused", fault: "too-large", message: "" }, policy), "fail");
  }
});

test("only an answer that was rejected before it began holds off its key", () => {
  const wait = (status: number) => {
    const decision = decide(answer(status, 5_000), "resend", { statuses: [] }, false);
    return decision.then === "retry" ? [decision.waitMs, decision.holdOffMs] : null;
  };
  assert.deepEqual(
    [wait(429), wait(503), wait(500)],
    [
      [5_000, 5_000],
      [5_000, 5_000],
      [5_000, null],
    ],
  );
});

test("Retry-After is seconds or a date, by the clock of the answer, at most a day", () => {
  const date = "Tue, 17 Nov 2026 12:00:00 GMT";
  assert.equal(retryAfterMs("7", undefined, 0), 7_000);
  assert.equal(retryAfterMs("Tue, 17 Nov 2026 12:00:30 GMT", date, 0), 30_000);
  assert.equal(retryAfterMs("Tue, 17 Nov 2026 11:00:00 GMT", date, 0), 0);
  assert.equal(retryAfterMs("999999999", undefined, 0), 86_400_000);
  assert.equal(retryAfterMs("soon", undefined, 0), null);
  assert.equal(retryAfterMs("-1", date, Date.parse(date)) ?? 0, 0);
  assert.equal(retryAfterMs(undefined, date, 0), null);
});

test("a mark without a known outcome is an unknown sending, and the latest counts", () => {
  const steps = (...names: string[]) => names.map((name) => ({ name, result: null }));
  assert.equal(unknownSending(steps()), null);
  assert.equal(unknownSending(steps(sentMark("ask", 3))), 3);
  assert.equal(unknownSending(steps(sentMark("ask", 3), knownMark(3))), null);
  assert.equal(unknownSending(steps(sentMark("fail", 3), knownMark(3), sentMark("fail", 5))), 5);
});

test("recovery reports what becomes of a request by the mark of the attempt that died", () => {
  const marked = { onCrash: "marked" } as const;
  assert.equal(decisionAfterDeath({ onCrash: "resend" }, null, 4), "resend");
  assert.equal(decisionAfterDeath(marked, null, 4), "unsent");
  assert.equal(decisionAfterDeath(marked, sentMark("ask", 4), 4), "ask");
  assert.equal(decisionAfterDeath(marked, sentMark("fail", 4), 4), "unknown");
  assert.equal(decisionAfterDeath(marked, sentMark("fail", 3), 4), "unsent");
  assert.equal(decisionAfterDeath(marked, knownMark(3), 4), "unsent");
});
