// Watermill as an outbox relay: its SQL subscriber on PostgreSQL, its router, its Kafka publisher.
//
// One handler for each shard, a table of its own (watermill_s0 …): Watermill reads a table one message at a time, so
// shards are what makes it fast, and a key's order holds because a key is always in the same one.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5/pgxpool"
)

var (
	database = flag.String("database", "", "URL of the database")
	brokers  = flag.String("brokers", "", "Kafka's bootstrap server")
	prefix   = flag.String("prefix", "", "topics are PREFIX.SUBJECT")
	shards   = flag.Int("shards", 32, "tables")
	batch    = flag.Int("batch", 1000, "rows of one query")
	poll     = flag.Duration("poll", 10*time.Millisecond, "pause after an empty query")
)

func main() {
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := relay(ctx); err != nil {
		log.Fatal(err)
	}
}

func relay(ctx context.Context) error {
	logger := watermill.NewStdLogger(false, false)
	connections, err := pgxpool.ParseConfig(*database)
	if err != nil {
		return err
	}
	connections.MaxConns = int32(*shards + 4)
	pool, err := pgxpool.NewWithConfig(ctx, connections)
	if err != nil {
		return err
	}
	defer pool.Close()

	producer := kafka.DefaultSaramaSyncPublisherConfig()
	producer.Producer.RequiredAcks = sarama.WaitForAll // by default the leader alone answers
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{
		Brokers: []string{*brokers},
		Marshaler: kafka.NewWithPartitioningMarshaler(func(_ string, m *message.Message) (string, error) {
			return m.Metadata.Get("key"), nil
		}),
		OverwriteSaramaConfig: producer,
	}, logger)
	if err != nil {
		return err
	}
	subscriber, err := sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		SchemaAdapter:  sql.DefaultPostgreSQLSchema{SubscribeBatchSize: *batch},
		OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval:   *poll,
	}, logger)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	publish := func(m *message.Message) error { // returns once Kafka has confirmed; only then is the row acknowledged
		return publisher.Publish(*prefix+"."+m.Metadata.Get("subject"), m)
	}
	for shard := range *shards {
		topic := fmt.Sprintf("s%d", shard)
		router.AddConsumerHandler(topic, topic, subscriber, publish)
	}
	return router.Run(ctx)
}
