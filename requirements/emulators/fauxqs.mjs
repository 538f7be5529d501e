// Serves fauxqs on loopback alone: its own command listens on all interfaces.
// Usage: node fauxqs.mjs PORT, with fauxqs among the packages beside this file.
import { buildApp } from "fauxqs";
import { SqsStore } from "./node_modules/fauxqs/dist/sqs/sqsStore.js";

const sqsStore = new SqsStore();
// Queue URLs name the host that was asked; a name below `localhost` does not resolve everywhere.
sqsStore.host = "";
const app = buildApp({ logger: false, defaultRegion: "us-east-1", stores: { sqsStore } });
const end = () => app.close().then(() => process.exit(0));
process.on("SIGTERM", end);
process.on("SIGINT", end);
await app.listen({ port: Number(process.argv[2]), host: "127.0.0.1" });
