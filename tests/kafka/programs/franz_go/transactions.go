package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	recordsOfATransaction = 20
	sessionTimeout        = 6 * time.Second
)

// transact is one transaction: the value to each topic.
func (own *login) transact(ctx context.Context, asked request) error {
	producer, err := own.transactional(asked.ID)
	if err != nil {
		return err
	}
	if err := producer.BeginTransaction(); err != nil {
		return err
	}
	for _, topic := range asked.Topics {
		record := &kgo.Record{Topic: topic, Value: []byte(asked.Value)}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			return err
		}
	}
	return producer.EndTransaction(ctx, kgo.TransactionEndTry(asked.Commit))
}

func (own *login) transactional(id string) (*kgo.Client, error) {
	if known, ok := own.producers[id]; ok {
		return known, nil
	}
	made, err := kgo.NewClient(append([]kgo.Opt{kgo.TransactionalID(id)}, own.options...)...)
	if err == nil {
		own.producers[id] = made
	}
	return made, err
}

// transform reads one topic as a group and writes each value to another one, with offsets and results in one transaction, until
// the program is killed. After an error that ends a session it starts over, as a program that was restarted would.
func (own *login) transform(asked request) {
	for {
		err := own.transformInASession(asked)
		fmt.Fprintf(os.Stderr, "starts over: %v\n", err)
	}
}

func (own *login) transformInASession(asked request) error {
	more := []kgo.Opt{
		kgo.TransactionalID(asked.ID),
		kgo.ConsumeTopics(asked.Topics[0]),
		kgo.ConsumerGroup(asked.Group),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(sessionTimeout / 6),
	}
	session, err := kgo.NewGroupTransactSession(append(more, own.options...)...)
	if err != nil {
		return err
	}
	defer session.Close()
	for {
		if err := transformSome(session, asked.Topics[1]); err != nil {
			return err
		}
	}
}

// transformSome is one transaction. A session whose transaction could not be committed goes on at the committed offsets.
func transformSome(session *kgo.GroupTransactSession, results string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fetched := session.PollRecords(ctx, recordsOfATransaction)
	if fetched.Empty() {
		return nil
	}
	if err := session.Begin(); err != nil {
		return err
	}
	failed := kgo.AbortingFirstErrPromise(session.Client())
	fetched.EachRecord(func(one *kgo.Record) {
		session.Produce(ctx, &kgo.Record{Topic: results, Key: one.Value, Value: one.Value}, failed.Promise())
	})
	_, err := session.End(ctx, kgo.TransactionEndTry(failed.Err() == nil))
	return err
}
