// S3: the port held to its specification on a real server (fauxqs, in this process), and what the adapter says when a server refuses.
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { after, before, test } from "node:test";
import { PutBucketLifecycleConfigurationCommand, S3Client } from "@aws-sdk/client-s3";
import { type FauxqsServer, startFauxqs } from "fauxqs";
import { s3 } from "../../src/blobs.ts";
import { ErrorCode } from "../../src/index.ts";
import { blobConformance } from "../../src/testing/index.ts";
import { says } from "../engine/engines.ts";

const credentials = { accessKeyId: "key", secretAccessKey: "secret-of-the-test" };
const common = { region: "us-east-1", forcePathStyle: true, credentials };
let server: FauxqsServer;
let buckets = 0;

before(async () => {
  server = await startFauxqs({ port: 0, logger: false });
});
after(() => server.stop());

function newBucket(): string {
  const bucket = `bucket-${++buckets}`;
  server.createBucket(bucket);
  return bucket;
}

blobConformance("S3", async () => {
  const bucket = newBucket();
  return {
    open: () => s3({ ...common, bucket, prefix: "app/blobs/", endpoint: server.address }),
    cleanup: async () => server.emptyBucket(bucket),
  };
});

test("a client of the program's own is used, and check reports whether unfinished uploads are aborted", async (t) => {
  const client = new S3Client({ ...common, endpoint: server.address });
  t.after(() => client.destroy());
  const bucket = newBucket();
  const blobs = s3({ bucket, client });
  const { facts } = await blobs.check();
  assert.equal(facts["region"], "us-east-1");
  assert.match(String(facts["unfinishedUploads"]), /add a lifecycle rule/);
  const rule = {
    Status: "Enabled",
    Filter: { Prefix: "" },
    AbortIncompleteMultipartUpload: { DaysAfterInitiation: 3 },
  };
  await client.send(
    new PutBucketLifecycleConfigurationCommand({
      Bucket: bucket,
      LifecycleConfiguration: { Rules: [{ ID: "abort", ...rule, Status: "Enabled" }] },
    }),
  );
  assert.equal((await blobs.check()).facts["unfinishedUploads"], "aborted after 3 days");
});

test("an upload in parts that fails is aborted: nothing of it stays on the server", async (t) => {
  const calls: string[] = [];
  const client = new S3Client({ ...common, endpoint: server.address });
  t.after(() => client.destroy());
  client.middlewareStack.add(
    (next, context) => (args) => {
      calls.push(String(context["commandName"]));
      return next(args);
    },
    { step: "initialize" },
  );
  const blobs = s3({ bucket: newBucket(), client });
  const source = async function* (): AsyncGenerator<Uint8Array> {
    yield Buffer.alloc(20_000_000);
    throw new Error("broken");
  };
  await assert.rejects(blobs.put("k", source()), /^Error: broken$/);
  assert.deepEqual(
    calls.filter((name) => /Multipart/.test(name)),
    ["CreateMultipartUploadCommand", "AbortMultipartUploadCommand"],
  );
});

test("a bucket that does not exist is named by every verb", async () => {
  const blobs = s3({ ...common, bucket: "no-such-bucket", endpoint: server.address });
  const missing = says(ErrorCode.blobsMissing, "no-such-bucket", "Create the bucket");
  await assert.rejects(blobs.put("k", Buffer.from("x")), missing);
  await assert.rejects(Array.fromAsync(blobs.get("k")), missing);
  await assert.rejects(blobs.head("k"), missing);
  await assert.rejects(Array.fromAsync(blobs.list()), missing);
  await assert.rejects(blobs.check(), missing);
});

test("a server that is not there, or does not respond in time, is unreachable", async (t) => {
  const silent = createServer(() => {}).listen(0, "127.0.0.1");
  t.after(() => {
    silent.closeAllConnections();
    silent.close();
  });
  await new Promise((resolve) => silent.once("listening", resolve));
  const endpoint = `http://127.0.0.1:${(silent.address() as AddressInfo).port}`;
  const late = s3({ ...common, bucket: "b", endpoint, timeoutMs: 200 });
  await assert.rejects(late.put("k", Buffer.from("x")), says(ErrorCode.blobsUnreachable, "storing k"));
  const client = new S3Client({ ...common, endpoint: "http://127.0.0.1:1", maxAttempts: 1 });
  await assert.rejects(s3({ bucket: "b", client }).head("k"), says(ErrorCode.blobsUnreachable, "looking for k"));
});

// fauxqs checks no signature, so these responses are written as Amazon documents them; the SDK reads them.
const responses: readonly (readonly [status: number, code: string, expected: ErrorCode])[] = [
  [403, "InvalidAccessKeyId", ErrorCode.blobsCredentials],
  [403, "SignatureDoesNotMatch", ErrorCode.blobsCredentials],
  [400, "ExpiredToken", ErrorCode.blobsCredentials],
  [403, "AccessDenied", ErrorCode.blobsForbidden],
  [404, "NoSuchBucket", ErrorCode.blobsMissing],
  [507, "XMinioStorageFull", ErrorCode.blobsFull],
  [418, "Odd", ErrorCode.blobsFailed],
];
for (const [status, code, expected] of responses)
  test(`the response ${status} ${code} is ${expected}, without the secret`, async (t) => {
    const refusing = createServer((request, response) => {
      request.resume();
      response.writeHead(status, { "content-type": "application/xml" });
      response.end(`<?xml version="1.0"?><Error><Code>${code}</Code><Message>Refused by the test.</Message></Error>`);
    }).listen(0, "127.0.0.1");
    t.after(() => {
      refusing.closeAllConnections();
      refusing.close();
    });
    await new Promise((resolve) => refusing.once("listening", resolve));
    const endpoint = `http://127.0.0.1:${(refusing.address() as AddressInfo).port}`;
    const client = new S3Client({ ...common, endpoint, maxAttempts: 1 });
    t.after(() => client.destroy());
    await assert.rejects(s3({ bucket: "b", client }).put("k", Buffer.from("x")), (thrown) => {
      says(expected, "storing k", "Refused by the test")(thrown);
      assert.ok(!(thrown as Error).message.includes(credentials.secretAccessKey));
      return true;
    });
  });

test("options that can't work are refused at once", () => {
  assert.throws(() => s3({ bucket: "" }), says(ErrorCode.optionInvalid));
  assert.throws(() => s3({ bucket: "b", prefix: "jobs" }), says(ErrorCode.optionInvalid, '"jobs/"'));
  assert.throws(() => s3({ bucket: "b", prefix: "../" }), says(ErrorCode.keyInvalid));
  assert.throws(() => s3({ bucket: "b", timeoutMs: 0 }), says(ErrorCode.optionInvalid));
});
