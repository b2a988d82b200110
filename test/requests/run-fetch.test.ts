// `run.fetch`: the calls of a handler as steps, also below an SDK that repeats what fails and catches what it can't.
import assert from "node:assert/strict";
import { test, type TestContext } from "node:test";
import { type Engine, job, type JobDetails, type Run } from "../../src/index.ts";
import { sqlite } from "../../src/sqlite.ts";
import { answers, type CannedAnswer } from "../../src/testing/index.ts";
import { AT_ONCE, memory, says } from "../engine/engines.ts";
import { Receiver } from "./server.ts";

const retry = { attempts: 3, backoff: AT_ONCE } as const;
const API = "https://api.example";

/** As SDKs do it: what fails in the network, 408, 429 and 5xx are tried again, twice. */
async function persistent(fetch: typeof globalThis.fetch, url: string, init: RequestInit): Promise<Response> {
  let last: unknown;
  for (let tries = 0; tries < 3; tries++) {
    try {
      const response = await fetch(url, init);
      if (response.status < 500 && response.status !== 408 && response.status !== 429) return response;
      last = new Error(`status ${response.status}`);
    } catch (thrown) {
      last = thrown;
    }
  }
  throw last;
}

const post = (body: string): RequestInit => ({ method: "POST", body });

interface Ran {
  readonly engine: Engine;
  readonly details: JobDetails;
  /** The bodies that were sent, in order. */
  readonly sent: () => readonly string[];
}

/** Runs one job with this handler to its end. Its POSTs get these answers, by their bodies. */
async function ran(
  t: TestContext,
  given: (body: string) => CannedAnswer,
  handler: (run: Run, fetch: typeof globalThis.fetch) => Promise<void>,
): Promise<Ran> {
  const { network, sent } = answers({ "POST https://api.example/*": ({ body }) => given(body) });
  const think = job("think", { retry });
  think.handle((_, run) => handler(run, run.fetch({ ifUnknown: "fail" })));
  const engine = await memory(t, [think], { network });
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  return { engine, details: (await engine.get(id))!, sent: () => sent.map(({ body }) => body) };
}

function isUnknown({ state, error }: JobDetails): void {
  assert.equal(state, "dead");
  assert.match(error!.message, /was sent, and its outcome is unknown/);
}

test("the fetch of a handler is a step: a later attempt gets the answer without a second call", async (t) => {
  const receiver = await Receiver.start(t, ({ body }, response) => response.end(`got ${body}`));
  const think = job("think", { retry });
  const bodies: string[] = [];
  think.handle(async (_, run) => {
    const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
    const response = await fetch(`${receiver.url}/x`, { method: "POST", body: "question" });
    bodies.push(`${response.status} ${await response.text()}`);
    if (run.attempt === 1) throw new Error("after the call");
  });
  const engine = await memory(t, [think]);
  await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.deepEqual(bodies, ["200 got question", "200 got question"]);
  assert.equal(receiver.received.length, 1);
});

test("an answer of 5xx is handed out and not kept, and a cut connection ends a job that must not send twice", async (t) => {
  const statuses: number[] = [];
  const receiver = await Receiver.start(t, ({ url }, response, raw) => {
    if (url === "/cut") raw.socket.destroy();
    else response.writeHead(statuses.length === 0 ? 503 : 200).end();
  });
  const think = job<{ path: string }>("think", { retry });
  think.handle(async ({ path }, run) => {
    const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
    const { status } = await fetch(receiver.url + path, { method: "POST", body: "b" });
    statuses.push(status);
    if (status >= 500) throw new Error("later");
  });
  const engine = await memory(t, [think]);
  await engine.enqueue(think, { path: "/ok" });
  await engine.runUntilIdle();
  assert.deepEqual(statuses, [503, 200]);
  const { id } = await engine.enqueue(think, { path: "/cut" });
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.equal(state, "dead");
  assert.match(error!.message, /was sent, and its outcome is unknown/);
  const cuts = (): number => receiver.received.filter(({ url }) => url === "/cut").length;
  assert.equal(cuts(), 1);
  await engine.retry(id);
  await engine.runUntilIdle();
  assert.deepEqual([(await engine.get(id))!.state, cuts()], ["dead", 2], "a person who retries it decides to send it");
});

test("a handler that gives up on a call does not send it again: its outcome is unknown", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const think = job("think", { retry });
  think.handle(async (_, run) => {
    const call = run.fetch({ ifUnknown: "fail", addresses: "any" })(receiver.url, { method: "POST" });
    call.catch(() => {});
    if (run.attempt > 1) await call;
    await receiver.until(() => receiver.received.length > 0);
    throw new Error("took too long");
  });
  const engine = await memory(t, [think]);
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.match((await engine.get(id))!.error!.message, /was sent, and its outcome is unknown/);
  assert.equal(receiver.received.length, 1);
});

test("run.fetch asks for ifUnknown, gives each call a name of its own, and has canned answers in tests", async (t) => {
  const { network, sent } = answers({ "GET https://api.example/*": ["one", "two"] });
  const think = job("think", { retry: { attempts: 1 } });
  const got: string[] = [];
  think.handle(async (_, run) => {
    // @ts-expect-error ifUnknown is required
    assert.throws(() => run.fetch({}), says("OPTION_INVALID", "ifUnknown of run.fetch"));
    for (const fetch of [run.fetch({ ifUnknown: "fail" }), run.fetch({ ifUnknown: "resend" })])
      got.push(await (await fetch("https://api.example/x")).text());
  });
  const engine = await memory(t, [think], { network });
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  assert.deepEqual([got, sent.length, (await engine.get(id))!.state], [["one", "two"], 2, "succeeded"]);
});

// ---- which call is which

test("after a call that was repeated each call of the next attempt still gets its own response", async (t) => {
  let isBusy = true;
  const got: string[] = [];
  const { details, sent } = await ran(
    t,
    (body) => {
      if (body === "a" && isBusy) {
        isBusy = false;
        return 503;
      }
      return `answer to ${body}`;
    },
    async (run, fetch) => {
      for (const body of ["a", "b"]) {
        got.push(await (await persistent(fetch, `${API}/x`, post(body))).text());
        if (body === "a" && run.attempt === 1) throw new Error("between them");
      }
    },
  );
  assert.equal(details.state, "succeeded");
  assert.deepEqual(got, ["answer to a", "answer to a", "answer to b"]);
  assert.deepEqual(sent(), ["a", "a", "b"]);
});

test("equal calls are told apart by how many were answered before, also if they are under way together", async (t) => {
  let count = 0;
  const got: string[][] = [];
  const { sent } = await ran(
    t,
    () => `answer ${++count}`,
    async (run, fetch) => {
      const call = async (): Promise<string> => (await fetch(API, post("same"))).text();
      got.push([...(await Promise.all([call(), call()])), await call()]);
      if (run.attempt === 1) throw new Error("again");
    },
  );
  assert.deepEqual(got, [
    ["answer 1", "answer 2", "answer 3"],
    ["answer 1", "answer 2", "answer 3"],
  ]);
  assert.equal(sent().length, 3);
});

test("a form is the same call in each attempt, although its boundary is another one", async (t) => {
  const { details, sent } = await ran(
    t,
    () => "fine",
    async (run, fetch) => {
      const body = new FormData();
      body.set("file", new Blob(["content"]), "a.txt");
      await fetch(API, { method: "POST", body });
      if (run.attempt === 1) throw new Error("again");
    },
  );
  assert.deepEqual([details.state, sent().length], ["succeeded", 1]);
});

// ---- what must not be sent twice

for (const status of [408, 500, 502, 504, 529])
  test(`a POST that must not be sent twice ends its job after a ${status}, however often the SDK repeats it`, async (t) => {
    const { details, sent } = await ran(
      t,
      () => status,
      async (_, fetch) => void (await persistent(fetch, API, post("pay"))),
    );
    isUnknown(details);
    assert.match(details.error!.message, new RegExp(`answered ${status}`));
    assert.deepEqual(sent(), ["pay"]);
  });

for (const status of [425, 429, 503])
  test(`a POST that was refused with ${status} had not begun, and is sent again`, async (t) => {
    let count = 0;
    const got: number[] = [];
    const { details, sent } = await ran(
      t,
      () => (++count === 1 ? status : 200),
      async (_, fetch) => {
        for (const __ of [1, 2]) got.push((await fetch(API, post("pay"))).status);
      },
    );
    assert.deepEqual([details.state, got, sent().length], ["succeeded", [status, 200], 2]);
  });

/** What handlers do with an error that they catch. */
const CAUGHT: Readonly<Record<string, (run: Run) => Promise<unknown>>> = {
  returns: async () => {},
  commits: (run) => run.commit(sqlite, () => {}),
  sleeps: (run) => run.sleep("1h"),
  "throws its own error": async () => {
    throw new Error("all in vain");
  },
};
for (const [what, afterwards] of Object.entries(CAUGHT))
  test(`a POST that was cut ends its job once, also if its handler catches that and ${what}; a retry by hand sends it`, async (t) => {
    let count = 0;
    const { engine, details, sent } = await ran(
      t,
      () => (++count === 1 ? { error: "cut" } : 200),
      async (run, fetch) => {
        try {
          await persistent(fetch, API, post("pay"));
        } catch {
          await afterwards(run);
        }
      },
    );
    isUnknown(details);
    assert.deepEqual([sent(), details.counters.errors], [["pay"], 1]);
    await engine.retry(details.id);
    await engine.runUntilIdle();
    assert.deepEqual([(await engine.get(details.id))!.state, sent()], ["succeeded", ["pay", "pay"]]);
  });

test("a POST that its SDK gave up waiting for is not sent again", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const think = job("think", { retry });
  think.handle(async (_, run) => {
    const fetch = run.fetch({ ifUnknown: "fail", addresses: "any" });
    for (let tries = 0; tries < 3; tries++) {
      const giveUp = new AbortController();
      const call = fetch(receiver.url, { method: "POST", signal: giveUp.signal });
      // What failed before it was sent has no receiver to wait for.
      const isOver = call.then(
        () => true,
        () => true,
      );
      await Promise.race([receiver.until(() => receiver.received.length > tries), isOver]);
      giveUp.abort();
      await isOver;
    }
  });
  const engine = await memory(t, [think]);
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  isUnknown((await engine.get(id))!);
  assert.equal(receiver.received.length, 1);
});

test("a POST whose outcome is unknown is not sent with another body by the next attempt", async (t) => {
  const receiver = await Receiver.start(t, () => {});
  const think = job("think", { retry });
  think.handle(async (_, run) => {
    const call = run.fetch({ ifUnknown: "fail", addresses: "any" })(receiver.url, post(`attempt ${run.attempt}`));
    call.catch(() => {});
    if (run.attempt > 1) await call;
    await receiver.until(() => receiver.received.length > 0);
    throw new Error("took too long");
  });
  const engine = await memory(t, [think]);
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  isUnknown((await engine.get(id))!);
  assert.equal(receiver.received.length, 1);
});

// ---- what is refused

test("the URLs that a request may not have are refused for run.fetch, too, and so is a body beyond the limit", async (t) => {
  const { network, sent } = answers({ "* *": 200 });
  const refusals: Promise<void>[] = [];
  const think = job("think", { retry: { attempts: 1 } });
  think.handle(async (_, run) => {
    const open = run.fetch({ ifUnknown: "resend" });
    const refused = (call: Promise<Response>, why: string): void =>
      void refusals.push(assert.rejects(call, says("REQUEST_REFUSED", "run.fetch", why)));
    refused(open("http://api.example/"), "scheme http:");
    refused(open("data:text/plain,x"), "scheme data:");
    refused(open("https://api.example:6379/"), "port 6379");
    const large = new ReadableStream({ pull: (body) => body.enqueue(new Uint8Array(1 << 20)) });
    refused(open(API, { method: "POST", body: large, duplex: "half" }), "more than 16777216 bytes");
    await Promise.all(refusals);
    const { status } = await run.fetch({ ifUnknown: "resend", addresses: "any" })("http://api.example:6379/");
    assert.equal(status, 200);
  });
  const engine = await memory(t, [think], { network });
  const { id } = await engine.enqueue(think, null);
  await engine.runUntilIdle();
  const { state, error } = (await engine.get(id))!;
  assert.deepEqual([state, error?.message, refusals.length, sent.length], ["succeeded", undefined, 4, 1]);
});
