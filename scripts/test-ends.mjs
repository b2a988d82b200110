// Loaded into the process of every test file: a file whose tests have ended, but whose process is held by something that a test left
// behind (an engine after a timeout, a server), fails with what holds it, instead of holding up the whole run for as long as CI lets it.
import { after } from "node:test";
import { isMainThread } from "node:worker_threads";

const GRACE_MS = 20_000;
const file = process.argv[1] ?? "";

// Threads and processes that tests start inherit this module, and are not test files.
if (isMainThread && process.env["NODE_TEST_CONTEXT"] !== undefined && file.endsWith(".test.ts"))
  after(() => {
    setTimeout(() => {
      const held = process.getActiveResourcesInfo().join(", ");
      process.stderr.write(`The tests of ${file} have ended, but its process is still held by: ${held}\n`);
      process.exit(1);
    }, GRACE_MS).unref();
  });
