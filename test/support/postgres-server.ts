// The server that tests start is the one that the demo starts.
export { PostgresServer, type ServerOptions, SUPERUSER } from "../../src/demo/postgres-server.ts";
